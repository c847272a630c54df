"""Progress bars on a terminal, and lines without one, so that a log shows that a long step still runs."""

from __future__ import annotations

from collections.abc import Iterator

from rich.progress import Progress, Task

from qdqtool.cli import signs


class SpeakingProgress(Progress):
    """Rich's progress bars; without a terminal, `signs` prints how far each step is."""

    def start(self) -> None:
        """Show the bars, or lines of progress without a terminal."""
        super().start()
        signs.show(self.lines)

    def stop(self) -> None:
        """Remove the bars."""
        signs.show(None)
        super().stop()

    def lines(self) -> Iterator[str]:
        """Yield a line for each step that runs."""
        for task in self.tasks:
            if task.visible and not task.finished:
                yield _line(task)


def _line(task: Task) -> str:
    passed = task.elapsed or 0.0
    if not task.total:
        return f"{task.description}: {_format_duration(passed)} so far"
    left = task.time_remaining
    if left is None and task.completed:
        left = passed * task.remaining / task.completed if task.remaining is not None else None
    about = f", about {_format_duration(left)} left" if left is not None else ""
    share = f"{task.completed:g} of {task.total:g} ({task.percentage:.0f} %)"
    return f"{task.description}: {share} after {_format_duration(passed)}{about}"


def _format_duration(seconds: float) -> str:
    """Format a duration: seconds up to two minutes, then minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
