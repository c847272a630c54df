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


def tables() -> Console:
    """The console for tables: whole names in a pipe, which has no width of its own."""
    from rich.console import Console

    return stdout() if stdout().is_terminal else Console(width=1 << 16, emoji=False)


def readable(text: str) -> str:
    """The text with control characters shown, so that a name cannot steer the terminal; line breaks stay."""
    from qdqtool.io.escaping import printable

    return printable(text, lines=True)


def escaped(text: str) -> str:
    """A name for a table: neither markup nor control characters in it do anything."""
    from rich.markup import escape

    return escape(readable(text.replace("\n", "\\n")))


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
