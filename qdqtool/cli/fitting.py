"""Tables that fit a terminal: numbers whole, long names cut in the middle, and a reason that repeats told once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_NUMBER = re.compile(r"[-+~<>]?[\d.,]+(?:[eE][-+]?\d+)?(?:\s?(?:%|ms|us|s|x|dB|[KMGT]?i?B))?|\?|-|")
_GAP = 2
_SHORT, _LEAST = 12, 6
"""Columns of the terminal: what is narrower is never cut, and to how many a name may be cut."""
_PROSE_WORDS = 6
"""Words of a cell from which on it is a sentence, which is wrapped and not cut."""
_SAME = '"'
"""Stands for the sentence above."""


def fitted(table: Table, width: int) -> Table:
    """The same table within `width` columns of a terminal.

    Numbers and short cells stay whole. Sentences wrap at words; one that stands right above is replaced by a ditto
    mark. Names give way for the rest: they lose their middle, because both ends tell them apart.
    """
    from rich.table import Table

    columns = [list(map(_text, column.cells)) for column in table.columns]
    heads = [_text(column.header) for column in table.columns]
    prose = [_is_prose(cells) for cells in columns]
    columns = [_once(cells) if told else cells for cells, told in zip(columns, prose, strict=True)]
    needed = [
        max((text.cell_len for text in (head, *cells)), default=0)
        for head, cells in zip(heads, columns, strict=True)
    ]
    given = _shared(needed, [_is_fixed(cells) for cells in columns], prose, width - _GAP * (len(columns) - 1))
    result = Table(
        box=None,
        pad_edge=False,
        show_header=table.show_header,
        padding=(0, _GAP, 0, 0),
        collapse_padding=True,
    )
    for column, head, size, told in zip(table.columns, heads, given, prose, strict=True):
        result.add_column(head, justify=column.justify, width=size, no_wrap=not told, overflow="fold")
    for row in zip(*columns, strict=True):
        result.add_row(
            *(text if told else _cut(text, size) for text, size, told in zip(row, given, prose, strict=True))
        )
    return result


def _text(cell: object) -> Text:
    from rich.text import Text

    return cell.copy() if isinstance(cell, Text) else Text.from_markup(str(cell))


def _is_prose(cells: Sequence[Text]) -> bool:
    return any(len(text.plain.split()) > _PROSE_WORDS for text in cells)


def _is_fixed(cells: Sequence[Text]) -> bool:
    """Whether a column holds numbers, or nothing long."""
    return all(_NUMBER.fullmatch(text.plain.strip()) or text.cell_len <= _SHORT for text in cells)


def _once(cells: Sequence[Text]) -> list[Text]:
    from rich.text import Text

    return [
        Text(_SAME) if number and text.plain and text.plain == cells[number - 1].plain else text
        for number, text in enumerate(cells)
    ]


def _shared(needed: Sequence[int], fixed: Sequence[bool], prose: Sequence[bool], width: int) -> list[int]:
    """Columns of the terminal for each column: fixed ones get what they need, the others share what is left."""
    open_ones = [number for number, is_fixed in enumerate(fixed) if not is_fixed]
    left = width - sum(size for size, is_fixed in zip(needed, fixed, strict=True) if is_fixed)
    given = list(needed)
    # the smallest first: what one does not need is there for the others
    for place, number in enumerate(sorted(open_ones, key=lambda number: (prose[number], needed[number]))):
        part = max(_LEAST, left // (len(open_ones) - place))
        given[number] = min(needed[number], part)
        left -= given[number]
    return given


def _cut(text: Text, width: int) -> Text:
    """The text with its middle replaced by an ellipsis where it is longer than `width`."""
    if text.cell_len <= width:
        return text
    half = (width - 1) // 2
    return text[: width - 1 - half] + "\u2026" + text[len(text) - half :]
