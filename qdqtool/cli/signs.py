"""Signs of activity on standard error: within a second, then every three seconds, also in a pipe.

A terminal shows progress bars instead; there, signs fill the time without bars.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Final

FIRST: Final = 0.6
"""Seconds before the first sign. Python and the command line take a third of a second before."""
EVERY: Final = 3.0
"""Seconds between signs."""
_sources: list[Callable[[], Iterable[str]]] = []
"""The progress that is shown now; empty if no step reports one."""


def show(lines: Callable[[], Iterable[str]] | None) -> None:
    """Use this progress display for signs of activity; None ends this."""
    _sources[:] = [] if lines is None else [lines]


@contextmanager
def of_life(command: str) -> Iterator[None]:
    """Print signs of activity while the block runs; print nothing if it ends within `FIRST` seconds."""
    over = Event()
    thread = Thread(target=_speak, args=(command, over), daemon=True, name="signs of life")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(1.0)  # show no sign after the command's last line


def _speak(command: str, over: Event) -> None:
    begun = time.monotonic()
    pause = FIRST
    while not over.wait(pause):
        pause = EVERY
        with suppress(
            Exception
        ):  # the stream is closed, or a bar ends now: a sign of life must never cause an error
            for line in _lines(command, time.monotonic() - begun):
                sys.stderr.write(f"  {line}\n")
            sys.stderr.flush()


def _lines(command: str, seconds: float) -> list[str]:
    is_terminal = sys.stderr.isatty()
    if is_terminal and _sources:
        return []
    shown = [line for source in _sources for line in source()]
    return shown or [f"{command}: {seconds:.0f} s so far" if seconds >= 1 else f"{command}: started"]
