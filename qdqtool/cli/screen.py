"""Output streams: results go to standard output, messages and progress bars to standard error."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, JustifyMethod
    from rich.table import Column, Table
    from rich.text import Text

    from qdqtool.core.report import Report


# --- fitting ---------------------------------------------------------------------------------------------------------
# Tables that fit a terminal: numbers are not cut, different names stay different, and repeated reasons are printed
# once.


_ONE = r"[-+~<>]?[\d.,]+(?:[eE][-+]?\d+)?(?:\s?(?:%|ms|us|s|x|dB|[KMGT]?i?B))?"
_NUMBER = re.compile(rf"{_ONE}(?:(?: (?:to|of|\.\.) |\.\.){_ONE})?(?: \(\d+\))?|\?|-|")
_GAP = 2
_SHORT, _LEAST = 12, 6
"""Widths in terminal columns: cells up to the first are never cut, and names are never cut below the second."""
_READABLE, _PROSE_LEAST = 20, 26
"""Least widths of a name and of a sentence. Below them, columns of `spare` are hidden."""
_PROSE_WORDS = 6
"""Number of words from which a cell counts as a sentence, which is wrapped and not cut."""
_SAME = '"'
"""Ditto mark, printed instead of the sentence of the row above."""


def fit_table(table: Table, width: int, spare: Sequence[str] = ()) -> tuple[Table, tuple[str, ...]]:
    """Fit a table into `width` terminal columns; return the table and the titles of omitted columns.

    Numbers and short cells stay whole, and titles wrap at words. Sentences wrap at words; a repetition of the cell
    above becomes a ditto mark. Names are shortened to make room: they lose their middle, or are continued on the next
    line if they differ only there. If they would become too short, columns of `spare` are hidden, the first one first.
    """
    from rich.table import Table

    columns = [_Column.read(column) for column in table.columns]
    left_out: list[str] = []
    widths = _widths(columns, width)
    for title in spare:
        if not _too_short(columns, widths):
            break
        kept = [column for column in columns if column.head.plain != title]
        if len(kept) < len(columns):
            columns, left_out = kept, [*left_out, title]
            widths = _widths(columns, width)
    result = Table(
        box=None,
        pad_edge=False,
        show_header=table.show_header,
        padding=(0, _GAP, 0, 0),
        collapse_padding=True,
    )
    for column, size in zip(columns, widths, strict=True):
        result.add_column(
            _wrap_head(column.head, size),
            justify=column.justify,
            width=size,
            overflow="fold",
        )
    for row in zip(*map(_shorten_names, columns, widths), strict=True):
        result.add_row(*row)
    return result, tuple(left_out)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    """The texts of a table column, how it is justified, and whether it wraps or is never cut."""

    head: Text
    cells: list[Text]
    justify: JustifyMethod
    is_prose: bool
    """True if the column holds sentences, which wrap."""
    fixed: bool
    """True if the column holds numbers, or only short cells: it is never cut."""

    @classmethod
    def read(cls, column: Column) -> _Column:
        cells = list(map(_text, column.cells))
        # a column with its own width holds parts, and may break between them
        is_prose = _is_prose(cells) or column.min_width is not None
        return cls(
            head=_text(column.header),
            cells=_once(cells) if is_prose else cells,
            justify=column.justify,
            is_prose=is_prose,
            fixed=_is_fixed(cells),
        )

    @property
    def content(self) -> int:
        return max((text.cell_len for text in self.cells), default=0)

    @property
    def least(self) -> int:
        """Smallest width for the content of the cells, and for a title with each word on a separate line."""
        return max([self.content, *map(len, self.head.plain.split())])


def _widths(columns: Sequence[_Column], width: int) -> list[int]:
    room = width - _GAP * (len(columns) - 1)
    whole = [max(column.head.cell_len, column.content) for column in columns]
    if sum(whole) <= room:
        return whole
    return _share_width(columns, [column.least for column in columns], room)


def _too_short(columns: Sequence[_Column], widths: Sequence[int]) -> bool:
    """Return True if names in a table would become too short to differ, or if numbers alone are too wide."""
    return any(
        size < min(_PROSE_LEAST if column.is_prose else _READABLE, column.least)
        for column, size in zip(columns, widths, strict=True)
        if not column.fixed
    )


def _wrap_head(head: Text, size: int) -> Text:
    from rich.text import Text

    if head.cell_len <= size:
        return head
    return Text(textwrap.fill(head.plain, size, break_long_words=False), style=head.style)


def _text(cell: object) -> Text:
    from rich.text import Text

    from qdqtool.io.escaping import printable

    return cell.copy() if isinstance(cell, Text) else Text.from_markup(printable(str(cell), lines=True))


def _is_prose(cells: Sequence[Text]) -> bool:
    return any(len(text.plain.split()) > _PROSE_WORDS for text in cells)


def _is_fixed(cells: Sequence[Text]) -> bool:
    """Return True if a column holds only numbers or short cells, which are never cut."""
    return all(_NUMBER.fullmatch(text.plain.strip()) or text.cell_len <= _SHORT for text in cells)


def _once(cells: Sequence[Text]) -> list[Text]:
    from rich.text import Text

    return [
        Text(_SAME) if number and text.plain and text.plain == cells[number - 1].plain else text
        for number, text in enumerate(cells)
    ]


def _share_width(columns: Sequence[_Column], needed: Sequence[int], room: int) -> list[int]:
    """Return the width of each column, in terminal columns.

    Fixed columns get the width that they need, sentences get at least a line of some words, and names get what they
    need of the rest.
    """
    widths = list(needed)
    names = [number for number, column in enumerate(columns) if not (column.fixed or column.is_prose)]
    prose = [number for number, column in enumerate(columns) if column.is_prose and not column.fixed]
    left = room - sum(size for size, column in zip(needed, columns, strict=True) if column.fixed)
    kept = sum(min(needed[number], _PROSE_LEAST) for number in prose)
    for group, reserved in ((names, kept), (prose, 0)):
        left -= reserved
        # narrow columns first: width that they do not need is left for the others
        for place, number in enumerate(sorted(group, key=lambda number: needed[number])):
            widths[number] = min(needed[number], max(_LEAST, left // (len(group) - place)))
            left -= widths[number]
        left += reserved
    return widths


def _shorten_names(column: _Column, width: int) -> list[Text]:
    """Cut the names of a column. If this would make two names equal, continue these names on the next line."""
    if column.is_prose:
        return column.cells
    shown = [_cut(text, width) for text in column.cells]
    is_clear = len({text.plain for text in shown}) == len({text.plain for text in column.cells})
    return shown if is_clear else [_on_lines(text, width) for text in column.cells]


def _on_lines(text: Text, width: int) -> Text:
    """Continue a name in a table on the next line, before a slash if there is one."""
    from rich.text import Text

    breaks: list[int] = []
    start = 0
    while len(text) - start > width:
        slash = text.plain.rfind("/", start + 1, start + width + 1)
        start = slash if slash > start else start + width
        breaks.append(start)
    return Text("\n").join(text.divide(breaks))


def _cut(text: Text, width: int) -> Text:
    """Replace the middle of the text by an ellipsis if it is longer than `width`."""
    if text.cell_len <= width:
        return text
    half = (width - 1) // 2
    return text[: width - 1 - half] + "\u2026" + text[len(text) - half :]


# --- screen ----------------------------------------------------------------------------------------------------------


wide: ContextVar[bool] = ContextVar("wide", default=False)
"""True if tables are printed as wide as their content (--wide of the current command)."""


@lru_cache(maxsize=1)
def stderr() -> Console:
    """Return the console for messages; colours follow NO_COLOR and the terminal."""
    return _console()(stderr=True, soft_wrap=True, emoji=False)


@lru_cache(maxsize=1)
def stdout() -> Console:
    """Return the console for results. `a:b:c` in the name of a tensor does not become an emoji."""
    return _console()(soft_wrap=True, emoji=False)


@lru_cache(maxsize=1)
def _console() -> type[Console]:
    from rich.console import Console

    from qdqtool.report.terminal import wrap_lines

    class Printable(Console):
        """A console that shows control characters as escapes, because names come from models and logs.

        A terminal gets sentences wrapped at words. Text is data: rich's markup and highlighting are for tables only.
        """

        def print(self, *objects: Any, **settings: Any) -> None:
            if all(isinstance(value, str) for value in objects):
                settings = {"markup": False, "highlight": False, **settings}
            super().print(
                *(
                    self._render_text(value, settings) if isinstance(value, str) else value
                    for value in objects
                ),
                **settings,
            )

        def _render_text(self, text: str, settings: dict[str, Any]) -> str:
            text = readable(text)
            # a tag of rich's markup must not be broken
            is_plain = settings.get("markup") is False or "[" not in text
            return wrap_lines(text, self.width) if self.is_terminal and is_plain else text

        def render_str(self, text: str, **settings: Any) -> Text:
            return super().render_str(readable(text), **settings)  # cells and titles of tables

    return Printable


def show_table(table: Table, *, spare: Sequence[str] = ()) -> None:
    """Print a table: fitted to a terminal; with --wide and in a pipe, as wide as its content and without padding at the end.

    A narrow terminal hides the columns of `spare`, starting with the first, and reports them. A table without rows is
    not printed.
    """
    console = stdout()
    if not table.row_count:
        return
    if console.is_terminal and not wide.get():
        shown_table, left_out = fit_table(table, console.width, spare)
        console.print(shown_table)
        if left_out:
            console.print(f"hidden columns: {', '.join(left_out)}; --wide shows them", style="dim")
        return
    unfitted = _console()(width=1 << 16, emoji=False, force_terminal=console.is_terminal, highlight=False)
    with unfitted.capture() as shown:
        unfitted.print(table)
    for line in shown.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def show_journal(search: str, objective: str, rows: Iterable[Sequence[str]]) -> None:
    """Print the rows of `core.journal.Journal`: the tried change, its gain, the decision, and the reason."""
    from rich.table import Table

    from qdqtool.core.journal import HEAD

    table = Table(box=None, pad_edge=False)
    for column in HEAD:
        table.add_column(column, justify="right" if column == "samples" else "left")
    for row in rows:
        table.add_row(*map(escape_markup, row))
    stdout().print(f"What was tried: {search}, by {objective}", style="bold")
    show_table(table, spare=("samples", "95 % interval"))


def show_plan(first: str, commands: Iterable[str], last: str) -> None:
    """Print the numbered steps of a search that measures times on a machine."""
    for number, line in enumerate((first, *commands, last), 1):
        stdout().print(f"{number}. {line}", soft_wrap=True)


_BY_LINE = re.compile(r"^[ \-*|]|\S {2,}\S", re.MULTILINE)
"""Finds a drawing, a list or a table in a paragraph, whose lines must stay lines."""


def show_text(text: str, *, prose: bool = False) -> None:
    """Write text. For a terminal, wrap it at words; if it is `prose`, first join the lines of each paragraph."""
    if sys.stdout.isatty():
        from shutil import get_terminal_size

        from qdqtool.report.terminal import wrap_lines

        parts = text.split("\n\n")
        parts = [part if _BY_LINE.search(part) or not prose else part.replace("\n", " ") for part in parts]
        text = wrap_lines("\n\n".join(parts).rstrip(), get_terminal_size().columns) + "\n"
    sys.stdout.write(text)


def show_page(report: Report, path: Path) -> None:
    """Write a report as a page, and print its path."""
    from qdqtool.io.files import write_text
    from qdqtool.report.html import render

    write_text(path, render(report))
    stderr().print(f"page: {path}")


def readable(text: str) -> str:
    """Return the text with control characters as escapes, so that names cannot control the terminal. Line breaks stay."""
    from qdqtool.io.escaping import printable

    return printable(text, lines=True)


def escape_markup(text: str) -> str:
    """Escape markup and control characters in a name, for use in a table."""
    from rich.markup import escape

    return escape(readable(text.replace("\n", "\\n")))
