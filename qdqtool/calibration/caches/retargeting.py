"""Converts a cache for another tool, another TensorRT release, or another export of the network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdqtool.calibration.caches.contents import ORT_FLATBUFFERS, ORT_JSON, ORT_TEXT, TENSORRT, Cache
from qdqtool.calibration.caches.header import make_header
from qdqtool.core.wording import counted
from qdqtool.errors import UsageError
from qdqtool.trt.ops import SHAPE_MAKERS

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView


# --- other tools and releases ----------------------------------------------------------------------------------------

_TABLES = {"json": ORT_JSON, "flatbuffers": ORT_FLATBUFFERS, "text": ORT_TEXT}


def for_tensorrt(cache: Cache, release: str, algorithm: str | None = None) -> Cache:
    """Give the cache the header that TensorRT `release` expects; entries of a TensorRT cache keep their text.

    Raises:
        UsageError: a release without calibrators, or the calibrator is unknown.
    """
    known = algorithm or (cache.header.algorithm if cache.header else None)
    if known is None:
        raise UsageError(
            "the cache does not name its calibrator",
            fix="add --algorithm EntropyCalibration2 or MinMaxCalibration",
        )
    header = make_header(release, known)
    if cache.format == TENSORRT:
        return cache.with_header(header)
    return _respelled(cache, TENSORRT).with_header(header)


def for_onnxruntime(cache: Cache, kind: str) -> Cache:
    """Convert the usable entries to a table of onnxruntime: "json", "flatbuffers" or "text".

    Raises:
        UsageError: another kind.
    """
    if kind not in _TABLES:
        raise UsageError(f"onnxruntime has no {kind!r} table", fix=f"choose one of {', '.join(_TABLES)}")
    return replace(_respelled(cache, _TABLES[kind]), header=None, unread=())


def left_out(before: Cache, after: Cache) -> tuple[str, ...]:
    """Return a note for each line or entry that the conversion left out."""
    lost = before.unread if before.format != after.format else ()
    notes = [f"line {unread.line} is not an entry and was skipped: {unread.text!r}" for unread in lost]
    there = after.by_tensor()
    for tensor, entry in before.by_tensor().items():
        if tensor not in there:
            why = (
                f"scale {entry.scale:g} is not a positive number"
                if _is_text(tensor)
                else "the name is not UTF-8"
            )
            notes.append(f"{tensor}: {why} and was skipped")
    return tuple(notes)


def _respelled(cache: Cache, kind: str) -> Cache:
    """Return the usable entries in another format, sorted by tensor; numbers lose their original text."""
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
    """Return whether the name is valid UTF-8, as every ONNX tensor name is."""
    return not any("\ud800" <= char <= "\udfff" for char in name)


# --- other exports ---------------------------------------------------------------------------------------------------
# A cache of another export of the same network: other tensor names, the same tensors in the same order.

OWN_NAMES = ("(Unnamed Layer*", "(Unnamed ITensor*")
"""Prefixes of names that TensorRT gives to its internal tensors; ONNX models have no such names."""


def running_order(view: GraphView) -> tuple[str, ...]:
    """Return the float tensors that hold data, inputs first, in graph order. Tensors used only to compute shapes are skipped."""
    data = [info.name for info in view.inputs if info.dtype.is_float]
    known = set(data)
    for node in view.nodes:
        if node.op in SHAPE_MAKERS or not known.intersection(node.inputs):
            continue
        made = [name for name in node.outputs if name and view.info(name).dtype.is_float]
        data += made
        known.update(made)
    return tuple(data)


def named_entries(cache: Cache) -> tuple[str, ...]:
    """Return the tensors of a cache in order, without TensorRT's internal tensors."""
    return tuple(tensor for tensor in cache.by_tensor() if not tensor.startswith(OWN_NAMES))


def is_shifted(cache: Cache, view: GraphView) -> bool:
    """Return whether the cache has one entry for every tensor of the model, but under other names."""
    ours, theirs = running_order(view), named_entries(cache)
    return len(ours) == len(theirs) and set(ours) != set(theirs)


def renamed(cache: Cache, view: GraphView) -> Cache:
    """Rename the entries to the tensors of the model, paired by order; TensorRT's internal names are kept.

    Raises:
        UsageError: model and cache have different numbers of tensors, so that order says nothing.
    """
    ours, theirs = running_order(view), named_entries(cache)
    if len(ours) != len(theirs):
        raise UsageError(
            f"the model has {counted(len(ours), 'float tensor')}, the cache {len(theirs)}: they cannot be paired by order",
            fix="use the ONNX file that was calibrated, or calibrate again",
        )
    names = dict(zip(theirs, ours, strict=True))
    entries = (replace(entry, tensor=names.get(entry.tensor, entry.tensor)) for entry in cache.entries)
    return replace(cache, entries=tuple(entries))
