"""Callbacks for the native builder: a logger that keeps all messages, and a monitor that reports progress."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from qdqtool.backends.native.percent import Percent

_MOST_MESSAGES = 200
"""Largest number of warnings and of errors that are sent to the parent; the log has all of them."""
_LETTERS = {"INTERNAL_ERROR": "F", "ERROR": "E", "WARNING": "W", "INFO": "I", "VERBOSE": "V"}


def logger_of(trt: Any) -> Any:
    """Return a logger that writes `[V] message` to standard error at once.

    Its `errors` and `warnings` hold each different message once, `layers` the layer dump or nothing, `broken` why messages
    were lost: nothing that is raised in a call of the native library reaches its caller.
    """

    class Log(trt.ILogger):  # type: ignore[misc] # the native base class has no types
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []
            self.warnings: list[str] = []
            self.layers = ""
            self.broken = ""

        def log(self, severity: Any, message: str) -> None:
            letter = _LETTERS.get(severity.name, "V")
            self._write(f"[{letter}] {message}\n".encode())
            if letter == "V" and message.startswith("Layers:\n"):
                self.layers += message.rstrip("\n") + "\n"
            kept = {"F": self.errors, "E": self.errors, "W": self.warnings}.get(letter)
            if kept is not None and len(kept) < _MOST_MESSAGES and message not in kept:
                kept.append(message)

        def _write(self, content: bytes) -> None:
            try:
                while content:
                    content = content[os.write(2, content) :]
            except OSError as error:
                self.broken = self.broken or error.strerror or str(error)

    return Log()


def monitor_of(trt: Any, tell: Callable[[dict[str, Any]], object]) -> Any:
    """Return a progress monitor that reports the builder's nested phases as one rising percentage."""
    percent = Percent()

    def progress(phase: str, now: int) -> None:
        tell({"event": "progress", "phase": phase, "percent": now})

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc] # the native base class has no types
        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            progress(phase, percent.start(phase, parent, steps))

        def step_complete(self, phase: str, step: int) -> bool:
            progress(phase, percent.step(phase, step))
            return True

        def phase_finish(self, phase: str) -> None:
            progress(phase, percent.finish(phase))

    return Monitor()
