"""Converts calibration caches to Q/DQ pairs and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from qdqtool.calibration.caches.contents import (
    ORT_FLATBUFFERS,
    ORT_JSON,
    ORT_TEXT,
    TENSORRT,
    Cache,
    make_header,
)
from qdqtool.calibration.table import groups, weight_range
from qdqtool.core.calibration import INT8_LEVELS, CalibrationTable, TensorRange
from qdqtool.core.placement import Decision, Placement, QdqPair, SlotKind
from qdqtool.core.preparation import DynamicRangeReport, OutOfRangeTensor
from qdqtool.core.recipe import CalibrationOptions
from qdqtool.core.tensors import DType
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError
from qdqtool.graph.qdq.encode import a_step_above
from qdqtool.trt.ops import SHAPE_MAKERS, carried_inputs, carried_outputs, gives_all

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView


@dataclass(frozen=True, kw_only=True, slots=True)
class Explicit:
    """The Q/DQ nodes to insert, and their ranges, as a calibration cache determines them.

    Attributes:
        placement: the slots whose tensors the cache knows.
        table: their ranges.
        notes: omissions and changes, one sentence each.
    """

    placement: Placement
    table: CalibrationTable
    notes: tuple[str, ...]


def explicit(cache: Cache, placement: Placement, view: GraphView, options: CalibrationOptions) -> Explicit:
    """Return the part of a Q/DQ placement for which a cache has ranges, and these ranges.

    Ranges of weights come from the weights, not from the cache.

    As in TensorRT's implicit mode a node without a range on one of its inputs stays float as a whole. Tensors that
    must share one scale get the largest of their scales.

    Raises:
        InputFileError: a weight is not a constant, or holds NaN or Inf.
    """
    scales = {tensor: entry.scale for tensor, entry in cache.by_tensor().items() if entry.is_usable}
    kept, lacking = _cover_ranges(placement, scales)
    notes = [*_doubts(cache), *lacking]
    ranges: dict[str, TensorRange] = {}
    for group in groups(kept):
        scale = max(scales[tensor] for tensor in group if tensor in scales)
        changed = [tensor for tensor in group if scales.get(tensor, scale) != scale]
        notes += [
            f"{tensor}: scale raised from {scales[tensor]:g} to {scale:g}, shared by {', '.join(group)}"
            for tensor in changed
        ]
        for tensor in group:
            ranges[tensor] = TensorRange(
                tensor=tensor,
                amax=(scale * INT8_LEVELS,),
                method="cache",
                origin=("read from a calibration cache",),
            )
    for decision in kept.quantized:
        if decision.kind is SlotKind.WEIGHT and decision.tensor not in ranges:
            ranges[decision.tensor] = weight_range(decision, view, options.weights)
    source = cache.header.text if cache.header else cache.format
    table = CalibrationTable(ranges=tuple(ranges[name] for name in sorted(ranges)), source=source)
    return Explicit(placement=kept, table=table, notes=tuple(notes))


def reach_of(cache: Cache, dtype: DType, largest: float) -> DynamicRangeReport:
    """Return the tensors whose ranges in a cache are larger than `largest`, the largest number of `dtype`."""
    usable = [entry for entry in cache.by_tensor().values() if entry.is_usable]
    over = [
        OutOfRangeTensor(tensor=entry.tensor, kind="overflow", largest=entry.amax)
        for entry in sorted(usable, key=lambda each: (-each.scale, each.tensor))
        if entry.amax > largest
    ]
    return DynamicRangeReport(dtype=dtype, samples=0, tensors=len(usable), strayed=tuple(over))


def scales_of(pairs: Sequence[QdqPair], view: GraphView) -> tuple[dict[str, float], list[str]]:
    """Return the scale of every quantized activation, and notes on anything that a cache cannot store.

    A scale is passed on to tensors with equal values (MaxPool, Reshape, Transpose and the like), because TensorRT
    needs an entry for them too.

    Raises:
        UsageError: a pair that no calibration cache can express: not INT8, a zero point, or scales computed at run time.
    """
    scales: dict[str, float] = {}
    notes: list[str] = []
    for pair in pairs:
        if pair.kind is SlotKind.WEIGHT:
            continue
        scale = _expressible(pair)
        if scales.setdefault(pair.tensor, scale) != scale:
            notes.append(
                f"{pair.tensor}: the tensor is quantized with the scales {scales[pair.tensor]:g} and {scale:g}; the larger scale is kept"
            )
            scales[pair.tensor] = max(scale, scales[pair.tensor])
    return _carry_scales(_together(scales, view), view), notes


def _doubts(cache: Cache) -> list[str]:
    """Return a note for each line, repeated entry or unusable scale of a cache that was not used as written."""
    notes = [f"line {unread.line} of the cache is not an entry: {unread.text!r}" for unread in cache.unread]
    for tensor, entries in cache.repeated().items():
        if len({entry.scale for entry in entries}) > 1:
            notes.append(
                f"{tensor}: the tensor occurs {count_noun(len(entries), 'time')} in the cache; the last scale is used"
            )
    for tensor, entry in cache.by_tensor().items():
        if not entry.is_usable:
            notes.append(f"{tensor}: scale {entry.scale:g} is not a positive number; treated as missing")
    return notes


def _cover_ranges(placement: Placement, scales: dict[str, float]) -> tuple[Placement, list[str]]:
    """Make nodes float if the cache has no range for an activation. Return the placement, and a note per node."""
    lacking: dict[str, str] = {}
    for decision in placement.quantized:
        if decision.kind is SlotKind.ACTIVATION and decision.tensor not in scales:
            lacking.setdefault(decision.slot.node, decision.tensor)
    notes = [f"{node} stays float: the cache has no scale for {tensor}" for node, tensor in lacking.items()]
    decisions = tuple(_float(entry) if entry.slot.node in lacking else entry for entry in placement.decisions)
    quantized = {entry.tensor for entry in decisions if entry.quantize}
    ties = (
        replace(tie, tensors=tuple(name for name in tie.tensors if name in quantized))
        for tie in placement.ties
    )
    return replace(
        placement, decisions=decisions, ties=tuple(tie for tie in ties if len(tie.tensors) > 1)
    ), notes


def _float(decision: Decision) -> Decision:
    return replace(decision, quantize=False, spec=None)


def _expressible(pair: QdqPair) -> float:
    obstacle = ""
    if pair.dtype is not DType.INT8:
        obstacle = f"is {pair.dtype}, not int8"
    elif any(pair.zero_point):
        obstacle = f"has zero point {pair.zero_point[0]}"
    elif len(set(pair.scale)) != 1:
        obstacle = "has a scale per channel" if pair.scale else "has a scale that is computed at run time"
    if obstacle:
        raise UsageError(
            f"the Q/DQ pair on {pair.tensor!r} {obstacle}, which a calibration cache cannot store",
            fix="make the model symmetric INT8 first: qdqtool repair",
        )
    return float(np.float32(pair.scale[0]))


def _together(scales: dict[str, float], view: GraphView) -> dict[str, float]:
    """Give the output of each Concat the scale of its inputs again, if insertion raised it by one float step.

    A Concat and its inputs share one range.
    """
    joined = dict(scales)
    for node in view.nodes:
        inputs = {joined.get(tensor) for tensor in node.inputs}
        (scale, *different) = inputs or {None}
        if node.op != "Concat" or scale is None or different or node.outputs[0] not in joined:
            continue
        above = {
            float(a_step_above(np.asarray(scale, np.float32), dtype))
            for dtype in (DType.FLOAT32, DType.FLOAT16)
        }
        if joined[node.outputs[0]] in above:
            joined[node.outputs[0]] = scale
    return joined


def _carry_scales(scales: dict[str, float], view: GraphView) -> dict[str, float]:
    """Add scales for tensors that hold the same values as a tensor in the cache.

    A tensor gets the scale if all its values come from tensors with that scale, or if all its values go to
    one.
    """
    passed_on = dict(scales)
    for node in view.nodes:
        reader_scales = {passed_on.get(node.inputs[index]) for index in carried_inputs(view, node)}
        scale = reader_scales.pop() if len(reader_scales) == 1 else None
        if scale is not None:
            for output in carried_outputs(node):
                passed_on.setdefault(output, scale)
    for node in reversed(view.nodes):
        inputs = carried_inputs(view, node)
        if len(inputs) == 1 and gives_all(node) and node.outputs[0] in scales:
            source = node.inputs[inputs[0]]
            if not view.is_constant(source):
                passed_on.setdefault(source, scales[node.outputs[0]])
    return passed_on


# --- other tools and releases ----------------------------------------------------------------------------------------

_TABLES = {"json": ORT_JSON, "flatbuffers": ORT_FLATBUFFERS, "text": ORT_TEXT}


def for_tensorrt(cache: Cache, release: str, algorithm: str | None = None) -> Cache:
    """Give the cache the header that TensorRT `release` expects; entries of a TensorRT cache keep their text.

    Raises:
        UsageError: a release without calibrators, or the calibrator is unknown.
    """
    calibrator = algorithm or (cache.header.algorithm if cache.header else None)
    if calibrator is None:
        raise UsageError(
            "the header of the cache does not name a calibrator",
            fix="add --algorithm EntropyCalibration2 or MinMaxCalibration",
        )
    header = make_header(release, calibrator)
    if cache.format == TENSORRT:
        return cache.with_header(header)
    return _respell_entries(cache, TENSORRT).with_header(header)


def for_onnxruntime(cache: Cache, kind: str) -> Cache:
    """Convert the usable entries of a cache to a table of onnxruntime: "json", "flatbuffers" or "text".

    Raises:
        UsageError: another kind.
    """
    if kind not in _TABLES:
        raise UsageError(
            f"cannot write a calibration table of onnxruntime as {kind!r}",
            fix=f"choose one of {', '.join(_TABLES)}",
        )
    return replace(_respell_entries(cache, _TABLES[kind]), header=None, unread=())


def note_left_out(before: Cache, after: Cache) -> tuple[str, ...]:
    """Return a note for each line or entry that the conversion omitted."""
    lost = before.unread if before.format != after.format else ()
    notes = [f"line {unread.line} is not a cache entry and was skipped: {unread.text!r}" for unread in lost]
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


def _respell_entries(cache: Cache, kind: str) -> Cache:
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
# A cache of another export of the network: tensors have other names but the same order.

OWN_NAMES = ("(Unnamed Layer*", "(Unnamed ITensor*")
"""Prefixes of names that TensorRT gives to its internal tensors; ONNX models have no such names."""


def running_order(view: GraphView) -> tuple[str, ...]:
    """Return the float tensors that hold data, inputs first, in graph order, without tensors that only give shapes."""
    data = [info.name for info in view.inputs if info.dtype.is_float]
    available = set(data)
    for node in view.nodes:
        if node.op in SHAPE_MAKERS or not available.intersection(node.inputs):
            continue
        results = [name for name in node.outputs if name and view.info(name).dtype.is_float]
        data += results
        available.update(results)
    return tuple(data)


def named_entries(cache: Cache) -> tuple[str, ...]:
    """Return the tensors of a cache in order, without TensorRT's internal tensors."""
    return tuple(tensor for tensor in cache.by_tensor() if not tensor.startswith(OWN_NAMES))


def is_shifted(cache: Cache, view: GraphView) -> bool:
    """Return True if the cache has one entry for every tensor of the model, but under other names."""
    ours, theirs = running_order(view), named_entries(cache)
    return len(ours) == len(theirs) and set(ours) != set(theirs)


def rename_entries(cache: Cache, view: GraphView) -> Cache:
    """Rename the entries to the tensors of the model, in order. TensorRT's internal names stay.

    Raises:
        UsageError: model and cache have different numbers of tensors, so entries cannot be paired by order.
    """
    ours, theirs = running_order(view), named_entries(cache)
    if len(ours) != len(theirs):
        raise UsageError(
            f"the model has {count_noun(len(ours), 'float tensor')}, but the cache has entries for {len(theirs)}, so they cannot be paired by order",
            fix="use the ONNX file that was calibrated, or calibrate again",
        )
    names = dict(zip(theirs, ours, strict=True))
    entries = (replace(entry, tensor=names.get(entry.tensor, entry.tensor)) for entry in cache.entries)
    return replace(cache, entries=tuple(entries))
