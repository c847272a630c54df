"""The same scales for somebody else to read."""

from __future__ import annotations

from dataclasses import replace

from qdqtool.calibration.caches.cache import ORT_FLATBUFFERS, ORT_JSON, ORT_TEXT, TENSORRT, Cache
from qdqtool.calibration.caches.header import make_header
from qdqtool.errors import UsageError

_TABLES = {"json": ORT_JSON, "flatbuffers": ORT_FLATBUFFERS, "text": ORT_TEXT}


def for_tensorrt(cache: Cache, release: str, algorithm: str | None = None) -> Cache:
    """The cache under the header that TensorRT `release` expects; entries of a TensorRT cache keep their spelling.

    Raises:
        UsageError: a release without calibrators, or nobody says which calibrator it is for.
    """
    known = algorithm or (cache.header.algorithm if cache.header else None)
    if known is None:
        raise UsageError(
            "the cache does not say which calibrator it is for",
            fix="add --algorithm EntropyCalibration2 or MinMaxCalibration",
        )
    header = make_header(release, known)
    if cache.format == TENSORRT:
        return cache.with_header(header)
    return _respelled(cache, TENSORRT).with_header(header)


def for_onnxruntime(cache: Cache, kind: str) -> Cache:
    """The usable entries as a table of onnxruntime: "json", "flatbuffers" or "text".

    Raises:
        UsageError: another kind.
    """
    if kind not in _TABLES:
        raise UsageError(f"onnxruntime has no {kind!r} table", fix=f"take one of {', '.join(_TABLES)}")
    return replace(_respelled(cache, _TABLES[kind]), header=None, unread=())


def left_out(before: Cache, after: Cache) -> tuple[str, ...]:
    """What another format cannot say, one sentence each."""
    lost = before.unread if before.format != after.format else ()
    notes = [f"line {unread.line} is no entry and was left out: {unread.text!r}" for unread in lost]
    there = after.by_tensor()
    for tensor, entry in before.by_tensor().items():
        if tensor not in there:
            why = (
                f"scale {entry.scale:g} is no positive number"
                if _is_text(tensor)
                else "the name is not UTF-8"
            )
            notes.append(f"{tensor}: {why} and was left out")
    return tuple(notes)


def _respelled(cache: Cache, kind: str) -> Cache:
    """Usable entries, sorted by tensor, numbers to be written anew."""
    usable = {
        tensor: entry
        for tensor, entry in cache.by_tensor().items()
        if entry.is_usable and (kind == TENSORRT or _is_text(tensor))
    }
    entries = (
        replace(usable[tensor], line=line, text="") for line, tensor in enumerate(sorted(usable), start=1)
    )
    return Cache(format=kind, entries=tuple(entries))


def _is_text(name: str) -> bool:
    """Whether the name holds no bytes that are not UTF-8; no ONNX tensor has such."""
    return not any("\ud800" <= char <= "\udfff" for char in name)
