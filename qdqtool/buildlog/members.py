"""Members of JSON values that hold messages: in lines of JSON, and in documents of one value.

    {"log": "...", "stream": "stderr"}                                  a line: docker, loggers
    {"_source": {"message": "..."}}                                     members inside members
    {"stream": {...}, "values": [["1704923572123000000", "..."]]}       several messages: Loki
    [{"line": "...", "timestamp": "..."}, ...]                          a document: what Grafana and gcloud download

Records are the objects and arrays that hold text themselves, however deep they stand. Which of their members holds the
messages is learned with a test of the caller's for what a message looks like.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Record = dict[str, str]
"""The members of an object, or of an array by their place, that are text or numbers, in their order."""

_DEEPEST = 40
"""Values inside each other that are looked into."""
_MEMBERS = 1000
"""Members of one record that are kept."""
_KEPT = 8 << 20
"""Characters that are kept of records that have not ended, beside their messages."""
_PEEKED = 4 << 20
"""Bytes of a document in which messages are looked for."""
_TELLING = 1 << 16
"""Bytes of a document that are waited for before it is looked at."""
_LONGEST = 4 << 20
"""Characters of one text; what is longer is no message, and is let go."""
_BEGINS = re.compile(rb"\s*(?:\[\s*[\[{]|\{\s*(?:\"|$))")
_SECOND_LINE = re.compile(rb"[^\n]*\n\s*\S")
_TOKEN = re.compile(r"\"[^\"\\]*(?:\\.[^\"\\]*)*(?:\"|\\?\Z)|[{}\[\],:]|[^\s\"{}\[\],:]+|\n", re.DOTALL)
"""A text, also one that goes on behind the piece; a mark; a number or a word; a line end."""
_MARKS = frozenset("{}[],:\n")


def json_of(text: str) -> dict[str, object] | None:
    """The object that a line of JSON is; None for any other text."""
    if not text.startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def records_of(value: object, depth: int = 0) -> Iterator[Record]:
    """The records of a JSON value, outer ones first."""
    if depth == _DEEPEST or not isinstance(value, (dict, list)):
        return
    pairs = value.items() if isinstance(value, dict) else ((str(at), one) for at, one in enumerate(value))
    members: Record = {}
    inner: list[object] = []
    for name, one in pairs:
        if isinstance(one, (dict, list)):
            inner.append(one)
        elif one is not None and len(members) < _MEMBERS:
            members[name] = str(one)
    if members:
        yield members
    for one in inner:
        yield from records_of(one, depth + 1)


def message_member(values: Iterator[object], bears: Callable[[str], bool]) -> str:
    """The member that holds messages in most records; "" where none does."""
    found: Counter[str] = Counter()
    for value in values:
        for record in records_of(value):
            found.update(name for name, text in record.items() if _bears(text, bears))
    return found.most_common(1)[0][0] if found else ""


def _bears(text: str, bears: Callable[[str], bool]) -> bool:
    """Whether a text is a message, or JSON again with a message in it."""
    value = json_of(text)
    if value is not None:
        return any(_bears(inner, bears) for record in records_of(value) for inner in record.values())
    return bears(text.partition("\n")[0])


@dataclass(slots=True)
class _Open:
    """An object or array that has not ended: the name of the next member, what is known, the lines of its members."""

    is_object: bool
    name: str = ""
    place: int = 0
    members: Record = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    size: int = 0


class Document:
    """A JSON document whose records become lines of JSON, in constant memory.

    A record stands in the line of the document in which its message begins. Of a document without line ends, lines
    are its records in order.

    Args:
        bears: whether a text is a message.

    Attributes:
        member: the member of its records that holds messages; "" where the text is no such document.
    """

    def __init__(self, bears: Callable[[str], bool]) -> None:
        self._bears = bears
        self.member = ""

    def lines(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        """The same bytes, or those of a document as lines."""
        begin, ended = next(pieces, b""), False
        if not _BEGINS.match(begin):
            yield from _chained(begin, pieces)
            return
        while not ended and len(begin) < _PEEKED and not _SECOND_LINE.match(begin):
            more = next(pieces, b"")
            begin, ended = begin + more, not more
        first, _, rest = begin.partition(b"\n")
        if not rest.strip() or json_of(first.decode("utf-8", "replace").strip()) is None:
            for more in pieces if len(begin) < _TELLING else ():
                begin += more
                if len(begin) >= _TELLING:
                    break
            values = (record for _, record in _records(iter((begin[:_PEEKED],))))
            self.member = message_member(values, self._bears)
        if not self.member:
            yield from _chained(begin, pieces)
            return
        yield from self._unfolded(_chained(begin, pieces))

    def _unfolded(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
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


def _chained(first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from pieces


def _records(pieces: Iterator[bytes], message: str = "") -> Iterator[tuple[dict[str, int], Record]]:
    """The records of a document as they end, each with the line, from 0, in which each member begins.

    Of records with very much text, the member `message` is kept, and not all of the others.
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
    """Texts, numbers, marks and line ends; a text that does not end in time is let go."""
    left = ""
    decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
    for piece in pieces:
        text = left + decode(piece)
        end = 0
        for found in _TOKEN.finditer(text):
            if found.end() == len(text) and found[0] not in _MARKS:
                break
            yield found[0]
            end = found.end()
        left = text[end:] if len(text) - end < _LONGEST else ""
    yield from (found[0] for found in _TOKEN.finditer(left))
