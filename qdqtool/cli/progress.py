"""Progress on a terminal: the running step, its progress and its cost. Without a terminal, lines show it in a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from qdqtool.cli import signs
from qdqtool.cli.screen import stderr
from qdqtool.core.protocols import BuildProgress


class SpeakingProgress(Progress):
    """Rich's progress bars. Without a terminal, the module `signs` prints each step's progress as lines."""

    def start(self) -> None:
        """Show the bars, or lines of progress without a terminal."""
        super().start()
        signs.show(self.lines)

    def stop(self) -> None:
        """Remove the progress bars from the terminal."""
        signs.show(None)
        super().stop()

    def update(self, task_id: TaskID, *, completed: float | None = None, **changes: Any) -> None:
        """Move a bar. If the count falls or the total changes, measure the rate from this moment."""
        task = self._tasks[task_id]
        total = changes.get("total")
        if completed is not None and (completed < task.completed or total not in {None, task.total}):
            changes["begun"] = (self.get_time(), completed)
        super().update(task_id, completed=completed, **changes)

    def lines(self) -> Iterator[str]:
        """Yield a text line for each running step."""
        visible = [task for task in self.tasks if task.visible]
        yield from map(_line, [task for task in visible if not task.finished] or visible[-1:])


def _line(task: Task) -> str:
    passed = task.get_time() - (task.start_time or 0.0)
    if not task.total or task.finished:
        return f"{task.description}: {_format_duration(passed)} so far"
    left = task.time_remaining
    since, first = task.fields.get("begun", (task.start_time, 0))
    if left is None and task.completed > first and task.remaining is not None:
        left = (task.get_time() - since) * task.remaining / (task.completed - first)
    about = f", about {_format_duration(left)} left" if left is not None else ""
    share = f"{task.completed:g} of {task.total:g} ({task.percentage:.0f} %)"
    return f"{task.description}: {share} after {_format_duration(passed)}{about}"


def _format_duration(seconds: float) -> str:
    """Format a duration: seconds up to two minutes, then minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def progress() -> SpeakingProgress:
    """Return a progress display on standard error: bars that disappear at the end; without a terminal, lines."""
    return SpeakingProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr(),
        transient=True,
    )


class RichProgress:
    """A listener that draws one progress bar per step on standard error.

    Use it as a context, so that the bar is gone before anything else is printed.
    """

    def __init__(self) -> None:
        self._bars: Progress = progress()
        self._task: TaskID | None = None
        self._step = ""
        self._has_heading = False

    def __enter__(self) -> RichProgress:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def started(self, step: str) -> None:
        """Show a new step with an empty progress bar."""
        self._step = step
        self._task = self._bars.add_task(step, total=None)

    def progressed(self, done: int, total: int | None) -> None:
        """Move the progress bar."""
        if self._task is not None:
            self._bars.update(self._task, completed=done, total=total)

    def reported(self, words: str) -> None:
        """Print a permanent line above the progress bar."""
        self._heading()
        stderr().print(f"  {self._step:<10}{words}")
        if self._task is not None:
            self._bars.reset(self._task, total=None)

    def finished(self, step: str, measured: Mapping[str, float], *, skipped: bool) -> None:
        """Replace the progress bar by one permanent line."""
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._task = None
        self._heading()
        cost = f"{measured.get('seconds', 0.0):6.1f} s"
        peak = f"{measured['peak_mib']:12.0f} MiB" if "peak_mib" in measured else ""
        words = "up to date" if skipped else f"{cost}{peak}"
        stderr().print(f"  {step:<10}{words}", style="dim" if skipped else "")

    def _heading(self) -> None:
        if not self._has_heading:
            self._has_heading = True
            stderr().print(f"  {'step':<10}{'time':>8}{'memory, peak':>16}", style="dim")


class Bars:
    """A progress bar on standard error for the running step. A step ends when the next one begins."""

    def __init__(self) -> None:
        self.display = progress()
        self._tasks: dict[str, TaskID] = {}
        self._step = ""

    def __enter__(self) -> Bars:
        self.display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.display.stop()

    def show(self, step: str, done: int, total: int | None) -> None:
        """Show that `done` of `total` parts of `step` are finished."""
        if step != self._step and self._step:
            self.display.update(self._tasks[self._step], visible=False)
        self._step = step
        if step not in self._tasks:
            self._tasks[step] = self.display.add_task(step, total=total)
        self.display.update(self._tasks[step], completed=done, total=total, visible=True)

    def show_build(self, news: BuildProgress) -> None:
        """Show the phase of a build and its progress in one bar."""
        self.show("build", news.done, news.total)
        self.display.update(self._tasks["build"], description=news.phase.lower())
