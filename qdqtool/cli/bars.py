"""Progress bars on a terminal. Without a terminal, a line every 30 seconds, so that a log shows that a long step still runs."""

from __future__ import annotations

from threading import Event, Thread
from typing import Final

from rich.progress import Progress, Task

EVERY: Final = 30.0
"""Seconds between progress lines without a terminal."""


class SpeakingProgress(Progress):
    """Rich's progress bars; without a terminal, a line for each step that has run for a while.

    Attributes:
        every: seconds between lines.
    """

    every = EVERY
    _over: Event | None = None

    def start(self) -> None:
        """Show the bars, or start printing lines if there is no terminal."""
        super().start()
        if not self.console.is_terminal and self._over is None:
            self._over = Event()
            Thread(target=self._speak, args=(self._over,), daemon=True, name="progress").start()

    def stop(self) -> None:
        """Remove the bars, and stop printing lines."""
        if self._over is not None:
            self._over.set()
            self._over = None
        super().stop()

    def _speak(self, over: Event) -> None:
        while not over.wait(self.every):
            # what has just begun is told when it takes long
            for task in self.tasks:
                if task.visible and not task.finished and (task.elapsed or 0.0) >= self.every / 2:
                    self.console.print(f"  {_line(task)}", style="dim", markup=False, highlight=False)


def _line(task: Task) -> str:
    passed = task.elapsed or 0.0
    if not task.total:
        return f"{task.description}: {_spelled(passed)} so far"
    left = task.time_remaining
    if left is None and task.completed:
        left = passed * task.remaining / task.completed if task.remaining is not None else None
    about = f", about {_spelled(left)} left" if left is not None else ""
    share = f"{task.completed:g} of {task.total:g} ({task.percentage:.0f} %)"
    return f"{task.description}: {share} after {_spelled(passed)}{about}"


def _spelled(seconds: float) -> str:
    """Format a duration: seconds up to two minutes, then minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
