"""Reads ranges back from a Q/DQ model, or from a calibration cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from qdqtool.calibration.caches import Cache
from qdqtool.calibration.caches.contents import Header, cache_of
from qdqtool.calibration.caches.converting import explicit, reach_of, scales_of
from qdqtool.calibration.caches.linting import impossible, results_without, words_on_results
from qdqtool.calibration.samples import open_samples
from qdqtool.core.calibration import CalibrationTable, ReadBack, ReadScale, TensorRange
from qdqtool.core.placement import QdqPair, Slot, SlotKind
from qdqtool.core.preparation import DynamicRangeReport
from qdqtool.core.recipe import PrepareOptions, Recipe
from qdqtool.core.tensors import FORMATS, DType
from qdqtool.core.wording import Command, count_noun
from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.provenance import Modules, origin
from qdqtool.graph.qdq.find import find, quantized_ops
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.qdq.unquantize import float_graph, with_zero_points
from qdqtool.graph.typed.narrow import NARROW
from qdqtool.graph.view import Model
from qdqtool.pipeline.conversion import reach_for, wants_samples
from qdqtool.pipeline.recipe_mistakes import refuse_unmatched
from qdqtool.placement.decide import decide
from qdqtool.placement.repair import write_out

_LIMITS = {**{entry.dtype: (entry.qmin, entry.qmax) for entry in FORMATS.values()}, DType.UINT8: (0, 255)}
_METHOD = "read back"
# Number of reasons in an error; the others are similar.
_TOLD = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class _QuantizedInput:
    """One quantized input, and the values that its Q/DQ pair can represent, over all channels."""

    scale: ReadScale
    amax: tuple[float, ...]
    low: float
    high: float


def read_back(path: Path) -> tuple[ReadBack, Model]:
    """Return the scales of a Q/DQ model, and the float model. The table of scales uses the tensor names of the float model.

    Integer operators (QLinearConv and similar) are read as the equivalent Q/DQ. An asymmetric pair counts with its
    largest magnitude. A tensor with several quantizations counts with the widest one. Notes report both.

    Raises:
        InputFileError: the model is unreadable, or its scales do not fit their tensors.
        UsageError: the model has no scale to read.
    """
    original = load(path)
    model = with_zero_points(write_out(original))
    plain = prepare(float_graph(model), PrepareOptions())
    notes: list[str] = []
    inputs = tuple(_read(model, plain, notes))
    if not inputs:
        ops = ", ".join(quantized_ops(model)) or "no quantized operator"
        raise UsageError(
            f"the model holds no scale that can be read: {'; '.join(notes[:_TOLD]) or ops}",
            fix="pass a Q/DQ model; ranges that are measured at run time are not stored in a model",
            where=str(path),
        )
    table = CalibrationTable(ranges=_ranges(inputs, notes), source=f"the Q/DQ of {path.name}")
    scales = ReadBack(
        model=path.name,
        origin=origin(original),
        scales=tuple(entry.scale for entry in inputs),
        table=table,
        notes=tuple(dict.fromkeys(notes)),
    )
    return scales, plain


def _read(model: Model, plain: Model, notes: list[str]) -> Iterator[_QuantizedInput]:
    modules = Modules(model)
    for pair in find(model):
        if pair.dtype is DType.INT32:
            continue  # a bias, whose scale is the product of two others
        trouble = _trouble(pair)
        if trouble:
            notes.append(f"{pair.tensor}: skipped, {trouble}")
            continue
        limits = _LIMITS[pair.dtype]
        scale, zero = np.abs(np.asarray(pair.scale)), np.asarray(pair.zero_point)
        low, high = (limits[0] - zero) * scale, (limits[1] - zero) * scale
        # Symmetric integers use equally many steps on both sides; the lowest integer is unused.
        amax = np.where(zero == 0, limits[1] * scale, np.maximum(-low, high))
        for start in pair.slots:
            slot, axis = _reader(model, start, pair)
            node = plain.view.by_name.get(slot.node)
            tensor = node.inputs[slot.index] if node and slot.index < len(node.inputs) else pair.tensor
            entry = ReadScale(
                slot=slot,
                tensor=tensor,
                module=modules.of(slot.node),
                kind=pair.kind,
                dtype=pair.dtype,
                scale=pair.scale,
                zero_point=pair.zero_point,
                axis=axis,
            )
            yield _QuantizedInput(
                scale=entry,
                amax=tuple(float(value) for value in amax),
                low=float(low.min()),
                high=float(high.max()),
            )


def _reader(model: Model, slot: Slot, pair: QdqPair) -> tuple[Slot, int | None]:
    """Return the input that reads a Q/DQ pair, and its channel axis, beyond any Transpose of a constant."""
    axis = pair.axis if len(pair.scale) > 1 else None
    view = model.view
    node = view.by_name[slot.node]
    while pair.kind is SlotKind.WEIGHT and node.op == "Transpose" and len(view.uses(node.outputs[0])) == 1:
        order = node.attribute("perm") or tuple(reversed(range(len(view.constant_shape(pair.tensor) or ()))))
        axis = None if axis is None or axis not in order else order.index(axis)
        use = view.uses(node.outputs[0])[0]
        slot, node = Slot(node=use.node.name, index=use.index), use.node
    return slot, axis


def _trouble(pair: QdqPair) -> str:
    if pair.dtype not in _LIMITS:
        return f"its type is {str(pair.dtype).upper()}, for which TensorRT has no kernels"
    if pair.scale_shape is None or not pair.zero_point:
        return "its scale is computed at run time"
    if len(pair.scale_shape) > 1:
        return "it has a scale per block"
    if not all(isfinite(scale) and scale != 0 for scale in pair.scale):
        return "its scale is 0 or not a number"
    return "" if len(pair.scale) == len(pair.zero_point) else "the shapes of scales and zero points differ"


def _ranges(inputs: tuple[_QuantizedInput, ...], notes: list[str]) -> tuple[TensorRange, ...]:
    by_tensor: dict[str, list[_QuantizedInput]] = {}
    for entry in inputs:
        by_tensor.setdefault(entry.scale.tensor, []).append(entry)
    return tuple(_range(tensor, by_tensor[tensor], notes) for tensor in sorted(by_tensor))


def _range(tensor: str, entries: list[_QuantizedInput], notes: list[str]) -> TensorRange:
    """Return the widest range of several quantized inputs; per channel if it is a weight and all have one axis."""
    first = entries[0].scale
    per_channel = first.kind is SlotKind.WEIGHT and first.axis is not None
    is_one_shape = len({(len(entry.amax), entry.scale.axis) for entry in entries}) == 1
    if per_channel and is_one_shape:
        amax = tuple(max(values) for values in zip(*(entry.amax for entry in entries), strict=True))
    else:
        amax = (max(max(entry.amax) for entry in entries),)
    if len({entry.amax for entry in entries}) > 1:
        notes.append(
            f"{tensor}: quantized in {count_noun(len({entry.amax for entry in entries}), 'way')}; the widest range is used"
        )
    shifted = any(any(entry.scale.zero_point) for entry in entries)
    return TensorRange(
        tensor=tensor,
        amax=amax,
        axis=first.axis if per_channel and is_one_shape else None,
        low=min(entry.low for entry in entries),
        high=max(entry.high for entry in entries),
        method=_METHOD,
        origin=("read from the scales of the Q/DQ model",),
        note="was asymmetric: the end with the larger magnitude is used" if shifted else "",
    )


# --- caches ----------------------------------------------------------------------------------------------------------
# Converts implicit INT8 (a float model and a calibration cache) to explicit INT8 (a Q/DQ model), and back.


def to_qdq(path: Path, cache: Cache, recipe: Recipe, samples: str = "") -> tuple[Model, tuple[str, ...]]:
    """Convert a float model and the scales of a cache to a Q/DQ model, with notes for the reader.

    With a float part in FP16, `samples` show the overflowing tensors; without samples, the ranges of the cache do.

    Raises:
        InputFileError: the model or a sample is unreadable.
        UsageError: no slot of the model has a scale in the cache, the model is quantized already, or the scales are
            spelled in another way.
    """
    network = load(path)
    wrong = impossible(cache, network.view)
    if wrong is not None:
        raise UsageError(
            wrong.what,
            fix=f"write amax / 127 as the scale of every tensor in the cache, or calibrate again; {Command('cache', ('lint', '--model'))} checks the cache",
            where=str(path),
        )
    refuse_unmatched(recipe, network.view, "prepare")
    model = prepare(network, recipe.preparing_by_name)
    refuse_unmatched(recipe, model.view, "place", "calibrate", "insert")
    covered = explicit(cache, decide(model.view, recipe.placing), model.view, recipe.calibrate)
    if not covered.placement.quantized:
        raise UsageError(
            "the cache has no scale for any tensor that would be quantized",
            fix=f"pass the ONNX file that was calibrated; {Command('cache', ('lint', '--model'))} compares the two",
            where=str(path),
        )
    reach, doubts = _reach(model, cache, recipe, samples)
    quantized = insert(model, covered.placement, covered.table, recipe.insert, reach)
    return quantized, (*covered.notes, *doubts, *quantized.notes)


def _reach(
    model: Model, cache: Cache, recipe: Recipe, samples: str
) -> tuple[DynamicRangeReport | None, tuple[str, ...]]:
    """Return the report of FP16 overflows if the recipe checks them, and a note if it is uncertain."""
    options = recipe.insert
    if options.types == "fp32" or not wants_samples(options):
        return None, ()
    if samples:
        kept = recipe.samples
        source = open_samples(samples, model.view.inputs, kept.preprocess, on_nan=kept.nan)
        return reach_for(model, options, source)
    doubt = "overflows were checked against the ranges of the cache, which may be clipped; pass --samples to find all of them"
    return reach_of(cache, NARROW[options.types].dtype, NARROW[options.types].largest), (doubt,)


def from_qdq(path: Path, header: Header) -> tuple[Model, Cache, tuple[str, ...]]:
    """Convert a Q/DQ model to a float model and a cache with its scales, with notes for the reader.

    Raises:
        InputFileError: the model is unreadable.
        UsageError: the model has no Q/DQ, or pairs that no cache can express.
    """
    model = load(path)
    pairs = find(model)
    if not pairs:
        raise UsageError("the model has no Q/DQ nodes", fix="pass a Q/DQ model", where=str(path))
    plain = float_graph(model)
    scales, notes = scales_of(pairs, plain.view)
    for node in plain.view.nodes:
        # TensorRT removes an Identity, and with it one of the two names.
        if node.op == "Identity" and node.inputs[0] in scales:
            scales.setdefault(node.outputs[0], scales[node.inputs[0]])
    left = quantized_ops(plain)
    if left:
        notes.append(f"still in the model, because an output needs them: {', '.join(left)}")
    results = results_without(scales, plain.view)
    if results:
        notes.append(words_on_results(results)[0])
    return plain, cache_of(scales, header), tuple(notes)
