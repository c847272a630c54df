"""Exports of log collectors: builder messages in JSON values or table cells, and logs with the newest line first."""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from qdqtool.errors import InputFileError

# --- JSON ------------------------------------------------------------------------------------------------------------
# Members of JSON values that hold messages: in lines of JSON, and in documents of one value.
#
#     {"log": "...", "stream": "stderr"}                                  a line: docker, loggers
#     {"_source": {"message": "..."}}                                     members inside members
#     {"stream": {...}, "values": [["1704923572123000000", "..."]]}       several messages: Loki
#     [{"line": "...", "timestamp": "..."}, ...]                          a document: what Grafana and gcloud download
#
# Records are the objects and arrays that directly contain text, at any depth. The member that holds messages is
# learned: the caller passes a test for messages.

Record = dict[str, str]
"""Text and number members of an object or array, in their order; elements of an array are named by their index."""

_DEEPEST = 40
"""Deepest nesting of values that is searched."""
_MEMBERS = 1000
"""Most members kept of one record."""
_KEPT = 8 << 20
"""Most characters kept of unfinished records, besides their messages."""
_PEEKED = 4 << 20
"""Bytes of a document that are searched for messages."""
_TELLING = 1 << 16
"""Bytes of a document that are collected before it is examined."""
_LONGEST = 4 << 20
"""Largest number of characters of one text; a longer text is not a message and is dropped."""
_BEGINS = re.compile(rb"\s*(?:\[\s*[\[{]|\{\s*(?:\"|$))")
_SECOND_LINE = re.compile(rb"[^\n]*\n\s*\S")
_TOKEN = re.compile(r"\"[^\"\\]*(?:\\.[^\"\\]*)*(?:(\")|\\?\Z)|([{}\[\],:\n])|[^\s\"{}\[\],:]+", re.DOTALL)
"""A text, also one that continues after the piece; a mark or a line end; a number or a word.

A group matches in tokens that cannot continue after the piece.
"""


def json_of(text: str) -> dict[str, object] | None:
    """Parse a line that is a JSON object; return None for other lines."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def records_of(value: object, depth: int = 0) -> Iterator[Record]:
    """Yield the records in a JSON value that may hold log messages, outer ones first."""
    if depth == _DEEPEST or not isinstance(value, (dict, list)):
        return
    pairs = value.items() if isinstance(value, dict) else ((str(at), item) for at, item in enumerate(value))
    members: Record = {}
    inner: list[object] = []
    for name, item in pairs:
        if isinstance(item, (dict, list)):
            inner.append(item)
        elif item is not None and len(members) < _MEMBERS:
            members[name] = str(item)
    if members:
        yield members
    for item in inner:
        yield from records_of(item, depth + 1)


def message_member(values: Iterator[object], bears: Callable[[str], bool]) -> str:
    """Return the name of the JSON member that holds the log message in most records; "" if there is none."""
    counts: Counter[str] = Counter()
    for value in values:
        for record in records_of(value):
            counts.update(name for name, text in record.items() if _bears(text, bears))
    return counts.most_common(1)[0][0] if counts else ""


def _bears(text: str, bears: Callable[[str], bool]) -> bool:
    """Return True if a text is a builder message, or JSON that contains one."""
    value = json_of(text)
    if value is not None:
        return any(_bears(inner, bears) for record in records_of(value) for inner in record.values())
    return bears(text.partition("\n")[0])


@dataclass(slots=True)
class _Open:
    """A JSON object or array that has not ended yet: its members so far and their line numbers."""

    is_object: bool
    name: str = ""
    place: int = 0
    members: Record = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    size: int = 0


class Document:
    """Converts a JSON document of log records to one line of JSON per record, in constant memory.

    A record has the line number at which its message begins. In a document without line ends, records count as lines.

    Args:
        bears: whether a text is a message.

    Attributes:
        member: the member of its records that holds messages; "" if the text is no such document.
    """

    def __init__(self, bears: Callable[[str], bool]) -> None:
        self._bears = bears
        self.member = ""

    def lines(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the log records of a JSON document as lines. Other text is returned unchanged."""
        begin, ended = next(pieces, b""), False
        if not _BEGINS.match(begin):
            yield from _chain_pieces(begin, pieces)
            return
        while not ended and len(begin) < _PEEKED and not _SECOND_LINE.match(begin):
            more = next(pieces, b"")
            begin, ended = begin + more, not more
        first, _, remainder = begin.partition(b"\n")
        if not remainder.strip() or json_of(first.decode("utf-8", "replace").strip()) is None:
            for more in pieces if len(begin) < _TELLING else ():
                begin += more
                if len(begin) >= _TELLING:
                    break
            values = (record for _, record in _records(iter((begin[:_PEEKED],))))
            self.member = message_member(values, self._bears)
        if not self.member:
            yield from _chain_pieces(begin, pieces)
            return
        yield from self._unfold_pieces(_chain_pieces(begin, pieces))

    def _unfold_pieces(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        written = size = 0
        held: list[str] = []
        for lines, record in _records(pieces, self.member):
            if self.member in record:
                text = "\n" * max(0, lines[self.member] - written) + json.dumps(record) + "\n"
                written += text.count("\n")
                held.append(text)
                size += len(text)
                if size > _TELLING:
                    yield "".join(held).encode()
                    held, size = [], 0
        yield "".join(held).encode()


def _chain_pieces(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces


def _records(pieces: Iterator[bytes], message: str = "") -> Iterator[tuple[dict[str, int], Record]]:
    """Yield each record of a JSON document when it ends, with the line numbers of its members.

    If a record has very much text, its member `message` is kept, and some of the others are dropped.
    """
    stack: list[_Open] = []
    line = deeper = size = 0
    for mark in _tokens(pieces):
        here = stack[-1] if stack else None
        if mark == "\n":
            line += 1
        elif mark in "{[":
            if deeper or len(stack) == _DEEPEST:
                deeper += 1
            else:
                stack.append(_Open(mark == "{"))
        elif mark in "}]":
            if deeper:
                deeper -= 1
            elif here is not None:
                stack.pop()
                size -= here.size
                if here.members:
                    yield here.lines, here.members
        elif deeper or here is None or mark == ":":
            continue
        elif mark == ",":
            here.place, here.name = here.place + 1, ""
        elif here.is_object and not here.name:
            here.name = _text(mark)
        elif mark != "null" and len(here.members) < _MEMBERS:
            name = here.name if here.is_object else str(here.place)
            if name == message or size + len(mark) <= _KEPT:
                here.members[name], here.lines[name] = _text(mark), line
                here.size += len(mark)
                size += len(mark)


def _text(token: str) -> str:
    try:
        return str(json.loads(token, strict=False))
    except ValueError:
        return token


def _tokens(pieces: Iterator[bytes]) -> Iterator[str]:
    """Yield the tokens of a JSON text: strings, numbers, punctuation and line ends. Skip too long tokens."""
    left, is_too_long = "", False
    decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
    for piece in pieces:
        text = left + decode(piece)
        left = ""
        for token in _TOKEN.finditer(text):
            if token.end() == len(text) and token.lastindex is None:
                left = token[0]
                break
            if not is_too_long:
                yield token[0]
            is_too_long = False
        if len(left) >= _LONGEST:
            # Keep its beginning and an unfinished escape, so that its end can be found.
            backslashes = len(left) - len(left.rstrip("\\"))
            left, is_too_long = left[0] + "\\" * (backslashes % 2), True
    if left and not is_too_long:
        yield left


# --- CSV -------------------------------------------------------------------------------------------------------------
# Tables of log lines: rows of CSV, of which one column holds what builders print.
#
#     @timestamp,message
#     2024-05-01T10:00:00.123Z,"[01/10/2024-21:52:52] [V] [TRT] ""a"", ""b"" and ""c"" are twice"
#     1704923572123,"[01/10/2024-21:52:52] [V] [TRT] \"a\", \"b\" and \"c\" are behind backslashes"
#
# The delimiter, and how quotes are written inside quotes, are learned. A cell may continue over several lines.

_ALIKE = 0.97
"""Share of rows that must have the most common number of cells."""
_NAME = re.compile(r"[@_A-Za-z][\w@. ()/-]{0,60}")
_WIDEST = 1 << 16
"""Most characters of a row that is split into cells."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """Format of one exported table of a log: its columns and rows.

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
        """Return the cells of a table row; None if the line is not a complete row."""
        cells = _cells(line, self.delimiter, doubled=self.doubled)
        return cells if cells is not None and len(cells) == self.columns else None

    def begun(self, line: str) -> list[str] | None:
        """Return the cells of a row up to a message that continues on the next line; else None."""
        cells = _cells(line + '"', self.delimiter, doubled=self.doubled)
        return cells if cells is not None and len(cells) == self.column + 1 else None

    def ended(self, line: str) -> str | None:
        """Return the last line of a message of several lines in a table; None if it continues."""
        cells = _cells('"' + line, self.delimiter, doubled=self.doubled)
        return cells[0] if cells is not None and len(cells) == self.columns - self.column else None

    def bare(self, line: str) -> str:
        """Return the text of a table line inside a message of several lines."""
        return line.replace('""', '"') if self.doubled else line.replace('\\"', '"')

    def shown(self) -> str:
        """Return the form of the table's rows as text: the message's place, and "..." for every further cell."""
        words = ["..."] * self.columns
        words[self.column] = '"<message>"'
        return self.delimiter.join(words)


def sheet_of(lines: Sequence[str], bears: Callable[[str], bool]) -> tuple[Sheet, list[list[str]]] | None:
    """Find the table format of consecutive log lines, and their rows; None if they are not a table.

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
            # A line without the delimiter is a single cell.
            if best is None or (count, columns) > best[0]:
                best = (count, columns), Sheet(delimiter, doubled, columns, column), rows
    return best[1:] if best else None


def _are_quoted(lines: Sequence[str]) -> bool:
    return sum(line[:1] == line[-1:] == '"' for line in lines) >= _ALIKE * len(lines)


def _rows(lines: Sequence[str], delimiter: str, *, doubled: bool) -> list[list[str]]:
    """Return the table rows with the most common width; empty if too few lines match."""
    rows = [_cells(line, delimiter, doubled=doubled) for line in lines]
    whole = _alike([cells for cells in rows if cells is not None], len(lines))
    return whole or _alike(_join_rows(lines, delimiter, doubled=doubled), 1)


def _alike(rows: list[list[str]], least: int) -> list[list[str]]:
    columns, count = Counter(map(len, rows)).most_common(1)[0] if rows else (0, 0)
    return (
        [cells for cells in rows if len(cells) == columns] if count >= _ALIKE * max(len(rows), least) else []
    )


def _join_rows(lines: Sequence[str], delimiter: str, *, doubled: bool) -> list[list[str]]:
    """Return table rows whose cells may have several lines; empty if the lines are not a table."""
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
        # The last row may continue after these lines.
        return rows if "end of data" in str(error) else []
    return rows


def is_header(cells: Sequence[str]) -> bool:
    """Return True if the cells of a table row are names of columns."""
    return all(_NAME.fullmatch(cell) for cell in cells)


def _cells(line: str, delimiter: str, *, doubled: bool) -> list[str] | None:
    """Split a line of a table into cells; None if its quotes do not match."""
    if len(line) > _WIDEST:
        return None
    escape = None if doubled else "\\"
    reader = csv.reader([line], delimiter=delimiter, doublequote=doubled, escapechar=escape, strict=True)
    try:
        return next(reader, None)
    except csv.Error:
        return None


# --- newest first ----------------------------------------------------------------------------------------------------
# The order of lines: exports of log collectors often begin with the newest line.
#
#     2024-05-01T10:00:07Z [V] [TRT] Engine generation completed in 2.5 seconds.
#     2024-05-01T10:00:06Z [V] [TRT] ...
#
# Such a log is read from its end.

HELD = 1 << 28
"""Most bytes that are reversed; more do not fit into memory."""
_PEEKED_FOR_TIMES = 1 << 20
"""Bytes that are searched for times."""
_ENOUGH = 3
"""Number of times older than the line before that prove a reversed log. Each newer time needs six more: before the log
of a build, other programs may list commits or files with the newest first.
"""
_TURNED = 1 << 16
"""Bytes that are cut into lines at once."""
_SEARCHED = 2000
"""Characters of a line that are searched for times."""
_COLUMNS = re.compile(rb"\"?[@_A-Za-z][\w@. ()/-]*\"?(?:[,;\t]\"?[@_A-Za-z][\w@. ()/-]*\"?)*\r?")
"""A line of column names, which stays first."""
_TIMELESS = 50
"""Lines without any time after which the search for times stops."""
_TIME = re.compile(
    rb"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)"
    rb"|(\d\d)/(\d\d)/(\d{4})-(\d\d:\d\d:\d\d)|(?<![\d-])(?<!actic: )(?<!actic )(1\d{9}(?:\d{9}|\d{3}|\.\d{1,9}))(?!\d)"
)
"""Times; the ids of tactics have as many digits as nanoseconds since 1970."""


class Order:
    """Detects whether a log begins with its newest line.

    Attributes:
        newest_first: known when its lines are read.
    """

    def __init__(self) -> None:
        self.newest_first = False
        self._before: dict[int, bytes] = {}
        self._lines = self._falling = self._rising = 0

    def oldest_first(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the text of a log in pieces, the oldest line first.

        Raises:
            InputFileError: the newest comes first, and the text is larger than 256 MiB.
        """
        read_pieces: list[bytes] = []
        size, tail = 0, b""
        for piece in pieces:
            read_pieces.append(piece)
            size += len(piece)
            *lines, tail = (tail + piece).split(b"\n")
            if self._shows_order(lines) or size >= _PEEKED_FOR_TIMES:
                break
        self.newest_first = self._falling >= _ENOUGH * (1 + 2 * self._rising)
        if not self.newest_first:
            yield from read_pieces  # in the pieces in which they were read: this bounds the reader's memory
            yield from pieces
            return
        held = bytearray(b"".join(read_pieces))
        for piece in pieces:
            held += piece
            if len(held) > HELD:
                raise InputFileError(
                    f"the log begins with its newest line, and holds more than {HELD >> 20} MiB",
                    fix="reverse it first: tac LOG | qdqtool parse -",
                    where="the log",
                )
        yield from _reverse_lines(held)

    def _shows_order(self, lines: list[bytes]) -> bool:
        """Return True if the times of the lines so far show whether the newest line is first."""
        for line in lines:
            now = _times(line)
            for form, time in now.items():
                earlier = self._before.get(form, time)
                self._rising += time > earlier
                self._falling += time < earlier
            if self._rising and self._falling < _ENOUGH:
                return True
            self._before |= now
            self._lines += 1
            if self._lines > _TIMELESS and not self._before:
                return True
        return False


def _reverse_lines(text: bytearray) -> Iterator[bytes]:
    """Yield pieces of a text with its lines in reverse order; the names of columns stay first.

    Cuts one piece at a time, because each byte may be a line.
    """
    end = len(text) - text.endswith(b"\n")
    first = text.find(b"\n", 0, end) + 1
    begin = first if first and _COLUMNS.fullmatch(text[: first - 1]) else 0
    yield bytes(text[:begin])
    while end >= begin:
        at = max(text.rfind(b"\n", begin, max(begin, end - _TURNED)), begin - 1) + 1
        yield b"\n".join(reversed(bytes(text[at:end]).split(b"\n"))) + b"\n"
        end = at - 1


def _times(line: bytes) -> dict[int, bytes]:
    """Return the first time of each format in a log line, in a sortable form."""
    times: dict[int, bytes] = {}
    for match in _TIME.finditer(line[:_SEARCHED]):
        year, month, day, clock, month2, day2, year2, clock2, since_1970 = match.groups()
        if since_1970:
            times.setdefault(len(since_1970), since_1970)
        elif year:
            times.setdefault(0, year + month + day + clock)
        else:
            times.setdefault(1, year2 + month2 + day2 + clock2)
    return times
