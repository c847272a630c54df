"""onnxruntime's `calibration.flatbuffers`: a table with one vector of (name, range) pairs of text.

Schema: `table KeyValue { key: string; value: string; }  table TrtTable { dict: [KeyValue]; }`. The library of the
format reads and writes it; a damaged file is an error, and texts that many entries share cannot add up to more than a
few times the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError

_SHARED: Final = 4
"""Writers may store equal texts once, but not so many times."""
_FIRST, _SECOND = 4, 6
"""Where a table's layout says where its first and second field lie."""


def read_pairs(path: Path, content: bytes) -> Iterator[tuple[str, str]]:
    """The pairs in the order of the file.

    Raises:
        InputFileError: an offset points outside, or a text is not UTF-8.
    """
    try:
        yield from _pairs(content)
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    except (struct.error, TypeError, IndexError) as error:
        # What the library says of its buffers tells nobody anything about the file.
        raise _damaged(
            path, f"its {counted(len(content), 'byte points', 'bytes point')} to places outside of it"
        ) from error


def _damaged(path: Path, why: str) -> InputFileError:
    return InputFileError(
        f"is no calibration table, or a damaged one: {why}",
        fix="name a calibration cache (text or flatbuffers) of TensorRT, onnxruntime or ModelOpt, or write it again",
        where=str(path),
    )


def write_pairs(pairs: Sequence[tuple[str, str]]) -> bytes:
    """A file of these pairs; the same pairs give the same bytes."""
    import flatbuffers

    builder: Any = flatbuffers.Builder(64 * len(pairs) + 64)
    places = []
    for key, value in pairs:
        texts = [builder.CreateString(text) for text in (key, value)]
        builder.StartObject(len(texts))
        for slot, text in enumerate(texts):
            builder.PrependUOffsetTRelativeSlot(slot, text, 0)
        places.append(builder.EndObject())
    builder.StartVector(4, len(places), 4)
    for place in reversed(places):
        builder.PrependUOffsetTRelative(place)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def _pairs(content: bytes) -> Iterator[tuple[str, str]]:
    from flatbuffers import encode, packer
    from flatbuffers.table import Table

    root: Any = Table(content, encode.Get(packer.uoffset, content, 0))
    field = root.Offset(_FIRST)
    if not field:
        return
    count, vector = root.VectorLen(field), root.Vector(field)
    if count * 4 > len(content):
        raise ValueError(f"it claims {counted(count, 'entry', 'entries')}")
    left = _SHARED * len(content)
    for index in range(count):
        entry: Any = Table(content, root.Indirect(vector + 4 * index))
        pair = tuple(_text(entry, slot) for slot in (_FIRST, _SECOND))
        left -= sum(map(len, pair))
        if left < 0:
            raise ValueError("its entries share texts that are too long")
        yield pair[0].decode("utf-8"), pair[1].decode("utf-8")


def _text(table: Any, slot: int) -> bytes:
    """The text in a field; empty when it is absent.

    Slices of Python end where the content does, so the length is compared with what is there.
    """
    field = table.Offset(slot)
    if not field:
        return b""
    start = table.Indirect(table.Pos + field)
    (length,) = struct.unpack_from("<I", table.Bytes, start)
    raw = bytes(table.Bytes[start + 4 : start + 4 + length])
    if start < 0 or len(raw) < length:
        raise ValueError(f"it holds a text of {length} bytes that ends early")
    return raw
