"""onnxruntime's `calibration.flatbuffers`: a table with one vector of (name, range) pairs of text.

Schema: `table KeyValue { key: string; value: string; }  table TrtTable { dict: [KeyValue]; }`. Every offset is
checked before it is followed, so a damaged file is an error and never a wild read; and texts that many entries share
cannot add up to more than a few times the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from qdqtool.errors import InputFileError


def read_pairs(path: Path, content: bytes) -> Iterator[tuple[str, str]]:
    """The pairs in the order of the file.

    Raises:
        InputFileError: an offset points outside, or a text is not UTF-8.
    """
    reader = _Reader(path, content)
    root = reader.number("<I", 0)
    vector = reader.field(root, 0)
    if vector is None:
        return
    start = vector + reader.number("<I", vector)
    count = reader.number("<I", start)
    if count * 4 > len(content):
        raise reader.damaged(f"claims {count} entries")
    for index in range(count):
        place = start + 4 + 4 * index
        table = place + reader.number("<I", place)
        yield reader.text(table, 0), reader.text(table, 1)


def write_pairs(pairs: Sequence[tuple[str, str]]) -> bytes:
    """A file of these pairs: root, the layouts of both tables, the vector, the tables, and behind them all texts."""
    vector = 4 + len(_ROOT_LAYOUT) + 8 + len(_PAIR_LAYOUT)
    first_table = vector + 4 + 4 * len(pairs)
    place = first_table + 12 * len(pairs)
    offsets, tables, texts = [], [], []
    for index, pair in enumerate(pairs):
        table = first_table + 12 * index
        offsets.append(table - (vector + 4 + 4 * index))
        tables.append(table - (vector - len(_PAIR_LAYOUT)))
        for field, text in enumerate(pair):
            raw = text.encode("utf-8")
            tables.append(place - (table + 4 + 4 * field))
            texts.append(struct.pack("<I", len(raw)) + raw + b"\0" * (4 - len(raw) % 4))
            place += len(texts[-1])
    root_table = 4 + len(_ROOT_LAYOUT)
    root = struct.pack("<iI", root_table - 4, vector - (root_table + 4))
    numbers = struct.pack(f"<I{len(offsets)}I{len(tables)}I", len(pairs), *offsets, *tables)
    return struct.pack("<I", root_table) + _ROOT_LAYOUT + root + _PAIR_LAYOUT + numbers + b"".join(texts)


_SHARED = 4
"""Writers may store equal texts once, but not so many times."""
_ROOT_LAYOUT = struct.pack("<4H", 6, 8, 4, 0)
"""Size of this layout, size of the table, and where its only field lies; padded to four bytes."""
_PAIR_LAYOUT = struct.pack("<4H", 8, 12, 4, 8)
"""The same for a table with two fields."""


class _Reader:
    """Numbers, fields and texts of a buffer that nobody trusts."""

    def __init__(self, path: Path, content: bytes) -> None:
        self._path = path
        self._content = content
        self._left = _SHARED * len(content)

    def number(self, kind: str, place: int) -> int:
        """The integer at `place`."""
        size = struct.calcsize(kind)
        if not 0 <= place <= len(self._content) - size:
            raise self.damaged(f"points to byte {place} of {len(self._content)}")
        return int(struct.unpack_from(kind, self._content, place)[0])

    def field(self, table: int, index: int) -> int | None:
        """Where field number `index` of a table lies; None when it is absent."""
        schema = table - self.number("<i", table)
        offset_place = 4 + 2 * index
        if offset_place + 2 > self.number("<H", schema):
            return None
        offset = self.number("<H", schema + offset_place)
        return table + offset if offset else None

    def text(self, table: int, index: int) -> str:
        """The text in a field; "" when it is absent."""
        place = self.field(table, index)
        if place is None:
            return ""
        start = place + self.number("<I", place)
        length = self.number("<I", start)
        raw = self._content[start + 4 : start + 4 + length]
        if len(raw) < length:
            raise self.damaged(f"holds a text of {length} bytes that ends early")
        self._left -= length
        if self._left < 0:
            raise self.damaged("its entries share texts that are too long")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged("holds a text that is not UTF-8") from error

    def damaged(self, what: str) -> InputFileError:
        """The error to raise."""
        return InputFileError(
            f"is no calibration table, or a damaged one: {what}",
            fix="copy or write the file again",
            where=str(self._path),
        )
