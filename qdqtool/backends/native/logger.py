"""Callbacks for the native builder: a logger that keeps all messages, and a monitor that reports progress."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# --- percent ---------------------------------------------------------------------------------------------------------
# Computes one rising percentage from a builder's nested phases.


@dataclass(slots=True)
class _Phase:
    parent: str | None
    steps: int
    done: int = 0


class Percent:
    """Progress of nested build phases as a single percentage, which never falls.

    Every step of a phase counts with an equal share of the phase, and a phase is one step of its parent.
    """

    def __init__(self) -> None:
        self._phases: dict[str, _Phase] = {}
        self._shown = 0

    def start(self, phase: str, parent: str | None, steps: int) -> int:
        """Begin a build phase; return the current percentage."""
        self._phases[phase] = _Phase(parent, max(steps, 1))
        return self._now(phase)

    def step(self, phase: str, step: int) -> int:
        """Complete step number `step` (from 0) of a build phase; return the current percentage."""
        if phase in self._phases:
            self._phases[phase].done = min(step + 1, self._phases[phase].steps)
        return self._now(phase)

    def finish(self, phase: str) -> int:
        """Complete a build phase; return the current percentage."""
        entry = self._phases.pop(phase, None)
        if entry is None:
            return self._shown
        if entry.parent is None:
            self._shown = 100
        return self._shown

    def _now(self, phase: str) -> int:
        share, name, visited = 0.0, phase, set[str]()
        while name in self._phases and name not in visited:
            visited.add(name)
            entry = self._phases[name]
            share = (entry.done + share) / entry.steps
            if entry.parent is None:
                break
            name = entry.parent
        self._shown = max(self._shown, int(100 * min(share, 1.0)))
        return self._shown


# --- logger ----------------------------------------------------------------------------------------------------------


_MOST_MESSAGES = 200
"""Largest number of warnings and of errors that are sent to the parent; the log has all of them."""
_LETTERS = {"INTERNAL_ERROR": "F", "ERROR": "E", "WARNING": "W", "INFO": "I", "VERBOSE": "V"}


def logger_of(trt: Any) -> Any:
    """Return a logger that writes `[V] message` to standard error at once.

    `errors` and `warnings` of the logger have each different message once. `layers` is the layer dump, or empty.
    `broken` is the reason for lost messages: an exception in a call of the native library never reaches the caller.
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
