"""Output streams: results go to standard output, messages and progress bars to standard error."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

wide: ContextVar[bool] = ContextVar("wide", default=False)
"""True if tables are printed as wide as their content (--wide of the current command)."""


@lru_cache(maxsize=1)
def stderr() -> Console:
    """Return the console for messages; colours follow NO_COLOR and the terminal."""
    return _console()(stderr=True, soft_wrap=True, emoji=False)


@lru_cache(maxsize=1)
def stdout() -> Console:
    """Return the console for results; `a:b:c` in a tensor name is not read as an emoji."""
    return _console()(soft_wrap=True, emoji=False)


@lru_cache(maxsize=1)
def _console() -> type[Console]:
    from rich.console import Console

    class Printable(Console):
        """A console that shows control characters as escapes, because names come from models and logs."""

        def print(self, *objects: Any, **settings: Any) -> None:
            super().print(*(readable(one) if isinstance(one, str) else one for one in objects), **settings)

        def render_str(self, text: str, **settings: Any) -> Text:
            return super().render_str(readable(text), **settings)  # cells and titles of tables

    return Printable


def show_table(table: Table, *, spare: Sequence[str] = ()) -> None:
    """Print a table: fitted to a terminal, as wide as its content with --wide and in a pipe, without padded ends.

    A narrow terminal hides columns of `spare`, the first one first, and says so. A table without rows is not printed.
    """
    from qdqtool.cli.fitting import fitted

    console = stdout()
    if not table.row_count:
        return
    if console.is_terminal and not wide.get():
        shown_table, left_out = fitted(table, console.width, spare)
        console.print(shown_table)
        if left_out:
            console.print(
                f"hidden columns: {', '.join(left_out)}; --wide shows them", style="dim", highlight=False
            )
        return
    unfitted = _console()(width=1 << 16, emoji=False, force_terminal=console.is_terminal, highlight=False)
    with unfitted.capture() as shown:
        unfitted.print(table)
    for line in shown.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def show_journal(search: str, objective: str, rows: Iterable[Sequence[str]]) -> None:
    """Print the rows of `core.journal.Journal`: what was tried, what it gained, kept or not, and why."""
    from rich.table import Table

    from qdqtool.core.journal import HEAD

    table = Table(box=None, pad_edge=False)
    for column in HEAD:
        table.add_column(column, overflow="fold", justify="right" if column == "samples" else "left")
    for row in rows:
        table.add_row(*map(escaped, row))
    stdout().print(f"What was tried: {search}, by {objective}", style="bold", highlight=False)
    show_table(table, spare=("samples", "95 % interval"))


def readable(text: str) -> str:
    """Return the text with control characters shown as escapes, so that a name cannot control the terminal. Line breaks stay."""
    from qdqtool.io.escaping import printable

    return printable(text, lines=True)


def escaped(text: str) -> str:
    """Escape markup and control characters in a name, for use in a table."""
    from rich.markup import escape

    return escape(readable(text.replace("\n", "\\n")))


def progress() -> Progress:
    """Return a progress display on standard error: bars that are removed at the end, or lines without a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from qdqtool.cli.bars import SpeakingProgress

    return SpeakingProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=stderr(),
        transient=True,
    )
