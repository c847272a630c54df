"""Opens calibration caches and tables of any origin; told apart by their content."""

from __future__ import annotations

import codecs
import re
from pathlib import Path
from typing import Any

from qdqtool.calibration.caches.cache import (
    ORT_FLATBUFFERS,
    ORT_JSON,
    ORT_TEXT,
    TABLE,
    TENSORRT,
    Cache,
    Entry,
    UnreadLine,
    from_hex,
)
from qdqtool.calibration.caches.flatbuffer import read_pairs
from qdqtool.calibration.caches.header import parse_header
from qdqtool.core.calibration import INT8_LEVELS
from qdqtool.core.kinds import CALIBRATION
from qdqtool.core.quant_format import INT8
from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError
from qdqtool.io.files import read_at_most
from qdqtool.io.json_files import parsed

# A cache has some 40 bytes a tensor, so that this is millions of tensors.
_LARGEST = 256 << 20
_MOST_LINES = 1 << 20
_HEX = re.compile(r"[ \t]*(?P<hex>[0-9a-fA-F]{1,8})[ \t\r]*")
_SCALE_DIGITS = 7
"""Hexadecimal digits of every scale above 1e-32."""
_NUMBER = re.compile(r"[-+]?(?:\d{1,40}\.?\d{0,40}(?:[eE][-+]?\d{1,9})?|nan|inf)\r?")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_cache(path: Path) -> Cache:
    """The cache or table at `path`.

    Raises:
        InputFileError: unreadable, or nothing in it looks like a calibration cache.
    """
    try:
        content = read_at_most(path, _LARGEST)
    except OSError as error:
        raise InputFileError(
            f"cannot be read: {error.strerror}", fix="check the path and its permissions", where=str(path)
        ) from error
    if content is None:
        raise _foreign(path, "is larger than 256 MiB")
    if content.startswith(_UTF16):
        raise InputFileError(
            "is UTF-16 text, which TensorRT cannot read either", fix="save it as UTF-8", where=str(path)
        )
    if content.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"{":
        return _json(path, content)
    if content.count(b"\n") > _MOST_LINES:
        raise _foreign(path, f"has more than {_MOST_LINES} lines")
    if b"\0" in content:
        return _flatbuffers(path, content)
    cache = parse_text(content.decode("utf-8", "surrogateescape"))
    if cache.header is None and not any(map(_could_be_scale, cache.entries)):
        raise _foreign(path, "holds no line like `tensor: 3c010a14`")
    if cache.header is None and len(cache.unread) > len(cache.entries):
        # Any text with colons has a line that could be an entry, such as `limit: 500` of a recipe.
        unread, lines = len(cache.unread), len(cache.unread) + len(cache.entries)
        raise _foreign(
            path,
            f"is no calibration cache: {unread} of {counted(lines, 'line is', 'lines are')} no entries, and it has no header",
        )
    return cache


def parse_text(text: str) -> Cache:
    """A TensorRT cache, or the text table of onnxruntime, line by line; nothing is lost.

    Names may contain colons: the last one counts, as in trtexec. Where some lines end with a carriage return and
    some do not, it belongs to the line's text.
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
    tensor, colon, rest = line.rpartition(":")
    match = _HEX.fullmatch(rest)
    if match is None or not tensor:
        return None
    return Entry(tensor=tensor, scale=from_hex(match["hex"]), line=number, text=colon + rest)


def _could_be_scale(entry: Entry) -> bool:
    """Whether an entry of a file without a header is one: `limit: 500` of a recipe would be the float 1.8e-42."""
    return entry.text.startswith(" ") or len(entry.text.removeprefix(":").strip()) >= _SCALE_DIGITS


def _ort_entry(line: str, number: int) -> Entry | None:
    tensor, space, value = line.rpartition(" ")
    if not tensor or _NUMBER.fullmatch(value) is None:
        return None
    return Entry(tensor=tensor, scale=float(value) / INT8_LEVELS, line=number, text=space + value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} stands in it twice")
        found[name] = value
    return found


def _json(path: Path, content: bytes) -> Cache:
    try:
        value = parsed(content.decode("utf-8-sig"), str(path), pairs=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise _foreign(path, f"is no JSON that can be read: {error}") from error
    if value.get("kind") == CALIBRATION.kind:
        table = CALIBRATION.read(path)
        # A cache holds the steps of INT8, whatever format the table was made for.
        entries = [Entry(tensor=e.tensor, scale=e.scales_in(INT8)[0]) for e in table.ranges if e.axis is None]
        return Cache(format=TABLE, entries=tuple(entries))
    if isinstance(value.get("kind"), str) and "schema" in value:
        raise _foreign(path, f"is the {value['kind']} of a run, and no calibration")
    found = {name: _amax(entry) for name, entry in value.items() if name != "CLS"}
    ranges = {name: amax for name, amax in found.items() if amax is not None}
    if "data" in value and not ranges:
        return _json_data(path, value["data"])
    return _from_ranges(path, ranges)


def _json_data(path: Path, data: Any) -> Cache:
    """The newer spelling, `{"CLS": "TensorsData", "data": {...}}`."""
    if not isinstance(data, dict):
        raise _foreign(path, "holds no ranges")
    found = {name: _amax(entry) for name, entry in data.items() if name != "CLS"}
    return _from_ranges(path, {name: amax for name, amax in found.items() if amax is not None})


def _from_ranges(path: Path, ranges: dict[str, float]) -> Cache:
    if not ranges:
        raise _foreign(path, "holds no ranges")
    entries = tuple(Entry(tensor=name, scale=amax / INT8_LEVELS) for name, amax in ranges.items())
    return Cache(format=ORT_JSON, entries=entries)


def _amax(entry: Any) -> float | None:
    """The magnitude in any spelling of onnxruntime: a number, its text, [low, high], or named bounds."""
    if isinstance(entry, dict):
        if "data" in entry and "CLS" in entry:
            return _amax(entry["data"])
        bounds = [_amax(entry[name]) for name in ("lowest", "highest") if name in entry]
        known = [bound for bound in bounds if bound is not None]
        return max(known) if known else None
    if isinstance(entry, list):
        parts = [_amax(part) for part in entry]
        known = [part for part in parts if part is not None]
        return max(known) if known and len(known) == len(parts) else None
    try:
        return (
            abs(float(entry))
            if isinstance(entry, (int, float, str)) and not isinstance(entry, bool)
            else None
        )
    except (ValueError, OverflowError):
        return None


def _flatbuffers(path: Path, content: bytes) -> Cache:
    entries = tuple(_text_entry(path, name, value) for name, value in read_pairs(path, content))
    return Cache(format=ORT_FLATBUFFERS, entries=entries)


def _text_entry(path: Path, name: str, value: str) -> Entry:
    try:
        return Entry(tensor=name, scale=float(value) / INT8_LEVELS, text=value)
    except ValueError as error:
        raise _foreign(path, f"holds {value!r} as the range of {name!r}") from error


def _foreign(path: Path, what: str) -> InputFileError:
    return InputFileError(
        what, fix="pass a TensorRT calibration cache or an onnxruntime calibration table", where=str(path)
    )
