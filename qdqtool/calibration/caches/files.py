"""Reads and writes files of calibration caches and tables, of any origin."""

from __future__ import annotations

import codecs
import json
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from qdqtool.calibration.caches.contents import (
    ORT_FLATBUFFERS,
    ORT_JSON,
    ORT_TEXT,
    TABLE,
    TENSORRT,
    Cache,
    Entry,
    UnreadLine,
    from_hex,
    parse_header,
    to_hex,
)
from qdqtool.core.calibration import INT8_LEVELS, CalibrationTable, TensorRange
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.tensors import INT8
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError
from qdqtool.io.files import read_at_most, write_bytes
from qdqtool.io.json_files import parse_json

# --- reading ---------------------------------------------------------------------------------------------------------
# Opens calibration caches and tables of any origin; the content shows the format.

# A cache has about 40 bytes per tensor, so this allows millions of tensors.
_LARGEST = 256 << 20
_MOST_LINES = 1 << 20
_HEX = re.compile(r"[ \t]*(?P<hex>[0-9a-fA-F]{1,8})[ \t\r]*")
_SCALE_DIGITS = 7
"""Number of hexadecimal digits from which an entry counts as a scale; scales above 1e-32 have at least this many."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,40}\.?\d{0,40}(?:[eE][-+]?\d{1,9})?|nan|inf)\r?")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_cache(path: Path) -> Cache:
    """Read the cache or table at `path`.

    Raises:
        InputFileError: the file is unreadable, or no line looks like a calibration cache.
    """
    try:
        content = read_at_most(path, _LARGEST)
    except OSError as error:
        raise InputFileError(
            f"the file cannot be read: {error.strerror}",
            fix="check the path and its permissions",
            where=str(path),
        ) from error
    if content is None:
        raise _foreign(path, "the file is larger than 256 MiB")
    if content.startswith(_UTF16):
        raise InputFileError(
            "the file is UTF-16 text; TensorRT reads UTF-8", fix="save it as UTF-8", where=str(path)
        )
    if content.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{":
        return _json(path, content)
    if content.count(b"\n") > _MOST_LINES:
        raise _foreign(path, f"the file has more than {_MOST_LINES} lines")
    if b"\0" in content:
        entries = tuple(_text_entry(path, name, value) for name, value in read_pairs(path, content))
        return Cache(format=ORT_FLATBUFFERS, entries=entries)
    cache = parse_text(content.decode("utf-8", "surrogateescape"))
    if cache.header is None and not any(map(_could_be_scale, cache.entries)):
        raise _foreign(path, "the file holds no line like `tensor: 3c010a14`")
    if cache.header is None and len(cache.unread) > len(cache.entries):
        # In any text with colons, a line may look like an entry, such as `limit: 500` in a recipe.
        unread, lines = len(cache.unread), len(cache.unread) + len(cache.entries)
        raise _foreign(
            path,
            f"the file is not a calibration cache: {unread} of {count_noun(lines, 'line is', 'lines are')} not entries, and it has no header",
        )
    return cache


def parse_text(text: str) -> Cache:
    """Parse a TensorRT cache, or a text table of onnxruntime, line by line. No line is lost.

    Names may contain colons: the last one counts, as in trtexec. If some lines end with a carriage return and some do
    not, it belongs to the line's text.
    """
    returns = text.count("\r\n")
    newline = "\r\n" if returns and returns == text.count("\n") else "\n"
    ends_open = bool(text) and not text.endswith(newline)
    lines = text.split(newline)
    if not ends_open:
        lines.pop()
    header = parse_header(lines[0]) if lines else None
    body = list(enumerate(lines, start=1))[1 if header else 0 :]
    is_ort = header is None and all(_entry(line, number) is None for number, line in body)
    entries: list[Entry] = []
    unread: list[UnreadLine] = []
    for number, line in body:
        entry = _ort_entry(line, number) if is_ort else _entry(line, number)
        if entry is None:
            unread.append(UnreadLine(line=number, text=line))
        else:
            entries.append(entry)
    return Cache(
        format=ORT_TEXT if is_ort and entries else TENSORRT,
        header=header,
        entries=tuple(entries),
        unread=tuple(unread),
        newline=newline,
        ends_open=ends_open,
    )


def _entry(line: str, number: int) -> Entry | None:
    tensor, colon, digits = line.rpartition(":")
    match = _HEX.fullmatch(digits)
    if match is None or not tensor:
        return None
    return Entry(tensor=tensor, scale=from_hex(match["hex"]), line=number, text=colon + digits)


def _could_be_scale(entry: Entry) -> bool:
    """Return True if an entry of a file without a header can be a scale.

    `limit: 500` of a recipe would be the float 1.8e-42.
    """
    return entry.text.startswith(" ") or len(entry.text.removeprefix(":").strip()) >= _SCALE_DIGITS


def _ort_entry(line: str, number: int) -> Entry | None:
    tensor, space, value = line.rpartition(" ")
    if not tensor or _NUMBER.fullmatch(value) is None:
        return None
    return Entry(tensor=tensor, scale=float(value) / INT8_LEVELS, line=number, text=space + value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"{name!r} occurs twice in it")
        entries[name] = value
    return entries


def _json(path: Path, content: bytes) -> Cache:
    try:
        value = parse_json(content.decode("utf-8-sig"), str(path), pairs=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise _foreign(path, f"the file is not valid JSON: {error}") from error
    if value.get("kind") == CALIBRATION.kind:
        table = CALIBRATION.read(path)
        # A cache stores INT8 scales, even if the table was made for another format.
        entries = [
            Entry(tensor=e.tensor, scale=e.symmetric.scales_in(INT8)[0])
            for e in table.ranges
            if e.axis is None
        ]
        return Cache(format=TABLE, entries=tuple(entries))
    if isinstance(value.get("kind"), str) and "schema" in value:
        raise _foreign(path, f"the file is the {value['kind']} of a run, not a calibration")
    amaxes = {name: _amax(entry) for name, entry in value.items() if name != "CLS"}
    ranges = {name: amax for name, amax in amaxes.items() if amax is not None}
    if "data" in value and not ranges:
        return _json_data(path, value["data"])
    return _from_ranges(path, ranges)


def _json_data(path: Path, data: Any) -> Cache:
    """Read onnxruntime's newer JSON format, `{"CLS": "TensorsData", "data": {...}}`."""
    if not isinstance(data, dict):
        raise _foreign(path, "the file holds no ranges")
    amaxes = {name: _amax(entry) for name, entry in data.items() if name != "CLS"}
    return _from_ranges(path, {name: amax for name, amax in amaxes.items() if amax is not None})


def _from_ranges(path: Path, ranges: dict[str, float]) -> Cache:
    if not ranges:
        raise _foreign(path, "the file holds no ranges")
    entries = tuple(Entry(tensor=name, scale=amax / INT8_LEVELS) for name, amax in ranges.items())
    return Cache(format=ORT_JSON, entries=entries)


def _amax(entry: Any) -> float | None:
    """Return the magnitude in any spelling of onnxruntime: a number, its text, [low, high], or named bounds.

    None for other values.
    """
    if isinstance(entry, dict):
        if "data" in entry and "CLS" in entry:
            return _amax(entry["data"])
        bounds = [_amax(entry[name]) for name in ("lowest", "highest") if name in entry]
        numbers = [bound for bound in bounds if bound is not None]
        return max(numbers) if numbers else None
    if isinstance(entry, list):
        parts = [_amax(part) for part in entry]
        numbers = [part for part in parts if part is not None]
        return max(numbers) if numbers and len(numbers) == len(parts) else None
    try:
        return (
            abs(float(entry))
            if isinstance(entry, (int, float, str)) and not isinstance(entry, bool)
            else None
        )
    except (ValueError, OverflowError):
        return None


def _text_entry(path: Path, name: str, value: str) -> Entry:
    try:
        return Entry(tensor=name, scale=float(value) / INT8_LEVELS, text=value)
    except ValueError as error:
        raise _foreign(path, f"the file holds {value!r} as the range of {name!r}") from error


def _foreign(path: Path, problem: str) -> InputFileError:
    return InputFileError(
        problem, fix="pass a TensorRT calibration cache or an onnxruntime calibration table", where=str(path)
    )


# --- writing ---------------------------------------------------------------------------------------------------------
# Writes calibration caches and tables; an unchanged TensorRT cache comes back byte for byte.


def write_cache(path: Path, cache: Cache) -> None:
    """Write `cache` in its format, atomically."""
    write_bytes(path, render(cache))


def render(cache: Cache) -> bytes:
    """Return the bytes of a cache in its file format."""
    if cache.format == ORT_FLATBUFFERS:
        return write_pairs(sorted((tensor, repr(entry.amax)) for tensor, entry in cache.by_tensor().items()))
    if cache.format == ORT_JSON:
        ranges = {tensor: [-entry.amax, entry.amax] for tensor, entry in cache.by_tensor().items()}
        return json.dumps(ranges, sort_keys=True).encode()
    if cache.format == TABLE:
        return CALIBRATION.dump(table_of(cache)).encode()
    lines = {
        entry.line: entry.tensor + (entry.text or _spell_scale(cache, entry.scale)) for entry in cache.entries
    }
    lines.update({unread.line: unread.text for unread in cache.unread})
    texts = [cache.header.text] if cache.header else []
    texts += [lines[number] for number in sorted(lines)]
    text = cache.newline.join(texts) + ("" if cache.ends_open or not texts else cache.newline)
    return text.encode("utf-8", "surrogateescape")


def table_of(cache: Cache) -> CalibrationTable:
    """Convert the usable entries of a cache to a table of ranges, sorted by tensor."""
    entries = cache.by_tensor()
    ranges = tuple(
        TensorRange(
            tensor=name, amax=(entries[name].amax,), method="cache", origin=("read from a calibration cache",)
        )
        for name in sorted(entries)
        if entries[name].is_usable
    )
    return CalibrationTable(ranges=ranges, source=cache.header.text if cache.header else cache.format)


def _spell_scale(cache: Cache, scale: float) -> str:
    return f" {scale * INT8_LEVELS!r}" if cache.format == ORT_TEXT else f": {to_hex(scale)}"


# --- flatbuffers -----------------------------------------------------------------------------------------------------
# onnxruntime's `calibration.flatbuffers`: a table with one vector of (name, range) pairs of text.
#
# Schema: `table KeyValue { key: string; value: string; }  table TrtTable { dict: [KeyValue]; }`. The format's own
# library reads and writes it. A damaged file is an error. Texts that many entries share are limited to a few times the
# size of the file.

_SHARED: Final = 4
"""Limit for the length of all texts together, as a multiple of the file size. Writers may store equal texts once."""
_FIRST, _SECOND = 4, 6
"""Positions in a table's layout that hold the offsets of its first and second field."""


def read_pairs(path: Path, content: bytes) -> Iterator[tuple[str, str]]:
    """Yield the tensors and values of an onnxruntime flatbuffers table, in the order of the file.

    Raises:
        InputFileError: an offset points outside, or a text is not UTF-8.
    """
    try:
        yield from _pairs(content)
    except ValueError as error:
        raise _report_damage(path, str(error)) from error
    except (struct.error, TypeError, IndexError) as error:
        # The library's own message is about its buffers and does not help a user.
        raise _report_damage(
            path,
            f"its {count_noun(len(content), 'byte points', 'bytes point')} to places outside of the file",
        ) from error


def _report_damage(path: Path, why: str) -> InputFileError:
    return InputFileError(
        f"the file is not a calibration table, or is damaged: {why}",
        fix="pass a calibration cache (text or flatbuffers) of TensorRT, onnxruntime or ModelOpt, or write the cache again",
        where=str(path),
    )


def write_pairs(pairs: Sequence[tuple[str, str]]) -> bytes:
    """Return an onnxruntime flatbuffers table with these tensors and values. Equal content gives equal bytes."""
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
        raise ValueError(f"it declares {count_noun(count, 'entry', 'entries')}")
    left = _SHARED * len(content)
    for index in range(count):
        entry: Any = Table(content, root.Indirect(vector + 4 * index))
        pair = tuple(_text(entry, slot) for slot in (_FIRST, _SECOND))
        left -= sum(map(len, pair))
        if left < 0:
            raise ValueError("its entries share texts that are too long")
        yield pair[0].decode("utf-8"), pair[1].decode("utf-8")


def _text(table: Any, slot: int) -> bytes:
    """Return the text in a field of a flatbuffers table; empty if the field is absent.

    Python slices end silently at the end of the content, so the stated length is compared with the real one.
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
