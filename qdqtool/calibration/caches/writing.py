"""Writes calibration caches and tables; an unchanged TensorRT cache comes back byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

from qdqtool.calibration.caches.cache import (
    ORT_FLATBUFFERS,
    ORT_JSON,
    ORT_TEXT,
    TABLE,
    Cache,
    to_hex,
)
from qdqtool.calibration.caches.flatbuffer import write_pairs
from qdqtool.core.calibration import INT8_LEVELS, CalibrationTable, TensorRange
from qdqtool.core.kinds import CALIBRATION
from qdqtool.io.files import write_bytes


def write_cache(path: Path, cache: Cache) -> None:
    """Write `cache` in the format it says, all or nothing."""
    write_bytes(path, render(cache))


def render(cache: Cache) -> bytes:
    """The bytes of a cache in its format."""
    if cache.format == ORT_FLATBUFFERS:
        return write_pairs(sorted((tensor, repr(entry.amax)) for tensor, entry in cache.by_tensor().items()))
    if cache.format == ORT_JSON:
        ranges = {tensor: [-entry.amax, entry.amax] for tensor, entry in cache.by_tensor().items()}
        return json.dumps(ranges, sort_keys=True).encode()
    if cache.format == TABLE:
        return CALIBRATION.dump(table_of(cache)).encode()
    lines = {
        entry.line: entry.tensor + (entry.text or _spelled(cache, entry.scale)) for entry in cache.entries
    }
    lines.update({unread.line: unread.text for unread in cache.unread})
    texts = [cache.header.text] if cache.header else []
    texts += [lines[number] for number in sorted(lines)]
    text = cache.newline.join(texts) + ("" if cache.ends_open or not texts else cache.newline)
    return text.encode("utf-8", "surrogateescape")


def table_of(cache: Cache) -> CalibrationTable:
    """The usable entries as a table of ranges, sorted by tensor."""
    entries = cache.by_tensor()
    ranges = tuple(
        TensorRange(
            tensor=name, amax=(entries[name].amax,), method="cache", origin=("read from a calibration cache",)
        )
        for name in sorted(entries)
        if entries[name].is_usable
    )
    return CalibrationTable(ranges=ranges, source=cache.header.text if cache.header else cache.format)


def _spelled(cache: Cache, scale: float) -> str:
    return f" {scale * INT8_LEVELS!r}" if cache.format == ORT_TEXT else f": {to_hex(scale)}"
