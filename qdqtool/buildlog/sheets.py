r"""Tables of log lines: rows of CSV, of which one column holds what builders print.

    @timestamp,message
    2024-05-01T10:00:00.123Z,"[01/10/2024-21:52:52] [V] [TRT] ""a"", ""b"" and ""c"" are twice"
    1704923572123,"[01/10/2024-21:52:52] [V] [TRT] \"a\", \"b\" and \"c\" are behind backslashes"

The delimiter and the way in which quotes are written inside quotes are learned. A cell may go on over several lines.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_ALIKE = 0.97
"""Share of the rows that have as many cells as most."""
_NAME = re.compile(r"[@_A-Za-z][\w@. ()/-]{0,60}")
_WIDEST = 1 << 16
"""Characters of a row that are taken apart."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """How the rows of a table are written.

    Attributes:
        delimiter: between cells.
        doubled: whether a quote inside quotes is written twice, instead of behind a backslash.
        columns: cells of a row.
        column: the place of the message.
    """

    delimiter: str
    doubled: bool
    columns: int
    column: int

    def cells(self, line: str) -> list[str] | None:
        """The cells of a row; None for a line that is none, or does not end in its line."""
        cells = _cells(line, self.delimiter, doubled=self.doubled)
        return cells if cells is not None and len(cells) == self.columns else None

    def begun(self, line: str) -> list[str] | None:
        """The cells of a row up to its message, which goes on in the next line; None for any other line."""
        cells = _cells(line + '"', self.delimiter, doubled=self.doubled)
        return cells if cells is not None and len(cells) == self.column + 1 else None

    def ended(self, line: str) -> str | None:
        """The last line of a message of several lines; None where it goes on."""
        cells = _cells('"' + line, self.delimiter, doubled=self.doubled)
        return cells[0] if cells is not None and len(cells) == self.columns - self.column else None

    def bare(self, line: str) -> str:
        """A line inside a message of several lines."""
        return line.replace('""', '"') if self.doubled else line.replace('\\"', '"')

    def shown(self) -> str:
        """A row in words."""
        words = ["..."] * self.columns
        words[self.column] = '"<message>"'
        return self.delimiter.join(words)


def sheet_of(lines: Sequence[str], bears: Callable[[str], bool]) -> tuple[Sheet, list[list[str]]] | None:
    """How lines that follow each other are written as rows of a table, and the rows; None where they are none.

    One of its columns must hold texts that `bears` knows.
    """
    best: tuple[tuple[int, int], Sheet, list[list[str]]] | None = None
    for delimiter in ",;\t":
        for doubled in (True, False):
            rows = _rows(lines, delimiter, doubled=doubled)
            columns = len(rows[0]) if rows else 0
            if columns == 1 and not _are_quoted(lines):
                continue
            heads = ((at, cell.partition("\n")[0]) for cells in rows for at, cell in enumerate(cells))
            bearing = Counter(at for at, head in heads if bears(head))
            if not bearing:
                continue
            column, count = bearing.most_common(1)[0]
            # Where nothing in a line is the delimiter, all of it is one cell.
            if best is None or (count, columns) > best[0]:
                best = (count, columns), Sheet(delimiter, doubled, columns, column), rows
    return best[1:] if best else None


def _are_quoted(lines: Sequence[str]) -> bool:
    return sum(line[:1] == line[-1:] == '"' for line in lines) >= _ALIKE * len(lines)


def _rows(lines: Sequence[str], delimiter: str, *, doubled: bool) -> list[list[str]]:
    """The rows that are as wide as most, of lines or of texts over several; none where too few are."""
    found = [_cells(line, delimiter, doubled=doubled) for line in lines]
    whole = _alike([cells for cells in found if cells is not None], len(lines))
    return whole or _alike(_joined(lines, delimiter, doubled=doubled), 1)


def _alike(rows: list[list[str]], least: int) -> list[list[str]]:
    columns, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
    return (
        [cells for cells in rows if len(cells) == columns] if count >= _ALIKE * max(len(rows), least) else []
    )


def _joined(lines: Sequence[str], delimiter: str, *, doubled: bool) -> list[list[str]]:
    """Rows whose cells go on over lines; none where the lines are not all of such rows."""
    escape = None if doubled else "\\"
    rows: list[list[str]] = []
    reader = csv.reader(
        (f"{line}\n" for line in lines if len(line) < _WIDEST),
        delimiter=delimiter,
        doublequote=doubled,
        escapechar=escape,
        strict=True,
    )
    try:
        rows.extend(reader)
    except csv.Error as error:
        # The last row may go on behind the lines.
        return rows if "end of data" in str(error) else []
    return rows


def is_header(cells: Sequence[str]) -> bool:
    """Whether the cells of a row are names of columns."""
    return all(_NAME.fullmatch(cell) for cell in cells)


def _cells(line: str, delimiter: str, *, doubled: bool) -> list[str] | None:
    """The cells of a line; None where its quotes are not those of a table."""
    if len(line) > _WIDEST:
        return None
    escape = None if doubled else "\\"
    reader = csv.reader([line], delimiter=delimiter, doublequote=doubled, escapechar=escape, strict=True)
    try:
        return next(reader, None)
    except csv.Error:
        return None
