"""Where words go: the answer to standard output, talk and progress bars to standard error."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


@lru_cache(maxsize=1)
def stderr() -> Console:
    """The console for talk; colours follow NO_COLOR and the terminal."""
    from rich.console import Console

    return Console(stderr=True, soft_wrap=True, emoji=False)


@lru_cache(maxsize=1)
def stdout() -> Console:
    """The console for answers; a tensor called a:b:c is no emoji."""
    from rich.console import Console

    return Console(soft_wrap=True, emoji=False)


def progress() -> Progress:
    """A progress display on standard error that leaves nothing behind."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr(),
        transient=True,
    )
