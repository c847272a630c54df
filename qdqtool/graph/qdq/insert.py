"""Writes a placement and its scales into a model as Q/DQ nodes that TensorRT accepts and fuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Decision, Placement, QuantSpec, Slot, SlotKind, classes
from qdqtool.core.preparation import DynamicRangeReport
from qdqtool.core.recipe import InsertOptions
from qdqtool.core.tensors import INT8, QUANTIZED_FROM, DType
from qdqtool.core.weights import RoundedWeight, WeightChanges
from qdqtool.core.wording import REPAIR, Command, Setting, count_noun
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.changes import shift_biases, with_changes
from qdqtool.graph.qdq.encode import LARGEST_HALF, a_step_above, block_scales, made_distinct, storable_as
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.graph.qdq.kv_caches import with_stored_caches
from qdqtool.graph.qdq.lower import Quantization, QuantizedGraph, lower
from qdqtool.graph.qdq.zero_points import with_constants
from qdqtool.graph.row_sums import RowSums
from qdqtool.graph.typed.convert import convert, with_opset
from qdqtool.graph.view import GraphView, Model
from qdqtool.trt.ops import MATRIX_PRODUCTS

_RECALIBRATE = f"run {Command('calibrate')} with this model and placement"


def insert(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    options: InsertOptions,
    reach: DynamicRangeReport | None = None,
) -> Model:
    """Return the model with a separate Q/DQ pair for every quantized node input.

    - Activations have one scalar scale and zero point 0, unless their range has another zero point
      (`insert_for_engine` writes these for TensorRT).
    - Weights have a scale per channel or per block, along the placement's axis.
    - Tensors that a `SharedScale` lists in `apart` get the next larger scale.
    - Biases stay float, with the shifts of the table.
    - If `options.weights` is not "qdq", quantized weights are stored before a DequantizeLinear only. Formats with
      blocks are always stored so.
    - The opset is raised if a format needs a newer one.
    - If `options.types` is not "fp32", the float part becomes this type, as `convert` does it, with the overflows
      that `reach` has from samples.
    - Nodes are named `<tensor>_<node>_<input>_QuantizeLinear` and `..._DequantizeLinear`.

    Raises:
        UsageError: the model has Q/DQ nodes already, or blocks do not divide the axis of their weight.
        InputFileError: placement or table belong to another model, or a range is missing or not a positive number.
    """
    refuse_quantized(model)
    model = replace(model, notes=(*model.notes, *table.notes))
    changes = table.weights or WeightChanges()
    if changes.values or changes.scaled:
        model = with_changes(model, replace(changes, rounded={}))
    if table.shifts:
        model = shift_biases(model, table.shifts)
    if options.types != "fp32":
        model = with_opset(model, options.types, quantized=True)
    elif any(model.view.info(decision.tensor).dtype is DType.FLOAT16 for decision in placement.quantized):
        model = with_opset(model, "fp16", quantized=True)
    model = _with_opset_of_formats(model, placement)
    assignment = assignment_of(model, placement, table, options)
    model = _with_note_of_blocks(model, assignment, options)
    model = _with_rounded_floats(model, assignment, changes)
    model, assignment = _with_weights_apart(model, assignment, options)
    if options.types != "fp32" and any(entry.format != INT8 for entry in assignment.values()):
        # Conversion cannot infer the types of TensorRT's own operators, so it comes first here.
        return lower(QuantizedGraph(model=convert(model, options, reach)[0], assignment=assignment))
    written = lower(QuantizedGraph(model=model, assignment=assignment))
    return written if options.types == "fp32" else convert(written, options, reach)[0]


def insert_for_engine(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    options: InsertOptions,
    reach: DynamicRangeReport | None = None,
) -> Model:
    """Return the model of `insert`, with the changes that TensorRT needs.

    Zero points become constants. Caches are stored in low-bit formats if the placement requests it.

    Raises:
        UsageError, InputFileError: as `insert`.
    """
    inserted = with_constants(insert(model, placement, table, options, reach))[0]
    return with_stored_caches(inserted, model.view, placement)


def _with_rounded_floats(
    model: Model, assignment: Mapping[Slot, Quantization], changes: WeightChanges
) -> Model:
    """Replace rounded weights by their float values, except weights that are only stored as integers."""
    nodes = model.view.by_name
    plain = {nodes[slot.node].inputs[slot.index] for slot, entry in assignment.items() if entry.codes is None}
    left = {name: entry for name, entry in changes.rounded.items() if name in plain}
    return with_changes(model, WeightChanges(rounded=left)) if left else model


def refuse_quantized(model: Model) -> None:
    """Raise an error if the model is quantized already.

    Raises:
        UsageError: the model has Q/DQ nodes or quantized operators.
    """
    there = quantized_ops(model)
    if there:
        raise UsageError(
            f"the model already has quantized operators: {', '.join(there)}",
            fix=f"start from the float model; or keep the Q/DQ of this model: run {REPAIR} on this model, then build and audit",
            where=str(model.path),
        )


def _with_opset_of_formats(model: Model, placement: Placement) -> Model:
    """Return the model at an opset that supports all number formats of the placement.

    Raises:
        InputFileError: the converter does not know how.
    """
    formats = [decision.spec.format for decision in placement.quantized if decision.spec is not None]
    needed = max((entry.opset for entry in formats), default=0)
    proto, note = raise_opset(model.proto, needed, model.path)
    if note is None:
        return model
    name = max(formats, key=lambda entry: entry.opset)
    return Model(proto=proto, path=model.path, notes=(*model.notes, f"{note}, the first that holds {name}"))


def _with_note_of_blocks(
    model: Model, assignment: Mapping[Slot, Quantization], options: InsertOptions
) -> Model:
    """Add a note for tensors whose block scales are computed although the options ask for constant ones."""
    nodes = model.view.by_name
    computed = [
        nodes[slot.node].inputs[slot.index]
        for slot, entry in assignment.items()
        if options.blocks == "constant" and entry.block and entry.scale is None
    ]
    if not computed:
        return model
    tensors = count_noun(len(set(computed)), "tensor")
    note = f"{tensors}, the first {computed[0]!r}, in blocks with computed scales although insert.blocks=constant: the node before sums along the blocks, and TensorRT for RTX 1.7.1 cannot build constant scales after such a sum"
    return Model(proto=model.proto, path=model.path, notes=(*model.notes, note))


def _with_weights_apart(
    model: Model, assignment: Mapping[Slot, Quantization], options: InsertOptions
) -> tuple[Model, dict[Slot, Quantization]]:
    """Give each MatMul or Gemm with a quantized weight and a float activation its own copy of the weight.

    TensorRT for RTX 1.7.1 dequantizes a weight inside the kernel of only one MatMul or Gemm. With two consumers, one
    kernel writes the float weight in every inference. Separate DequantizeLinear nodes do not help, because the
    builder merges equal nodes. Copies with equal lists of scales of less than 512 bytes are merged too (30 builds),
    so each copy has one scale that is a step larger.
    """
    edit = Edit(model)
    own = dict(assignment)
    nodes = {node.name: node for node in edit.nodes}
    taken: Counter[str] = Counter()
    for slot, entry in assignment.items():
        node = nodes[slot.node]
        alone = slot.index == 1 and Slot(node=slot.node, index=0) not in assignment
        tensor = node.input[slot.index]
        if node.op_type not in MATRIX_PRODUCTS or not alone or tensor not in edit.constants:
            continue
        if tensor in taken:
            copy = onnx.TensorProto()
            copy.CopyFrom(edit.constants[tensor])
            copy.name = node.input[slot.index] = edit.fresh(f"{tensor}_{slot.node}")
            edit.constants[copy.name] = copy
            if entry.block and entry.scale is not None and entry.format.scale_dtype is None:
                here = _choose_scale_type(model.view.info(tensor).dtype, options)
                own[slot] = replace(entry, scale=made_distinct(entry.scale, here, taken[tensor]))
        taken[tensor] += 1
    return (edit.finish(), own) if taken.total() > len(taken) else (model, own)


def _choose_scale_type(here: DType, options: InsertOptions) -> DType:
    """Return the type in which the scales of a tensor are written if the tensor has the type `here`."""
    return here if here is DType.FLOAT16 else DType(options.types)


def assignment_of(
    model: Model, placement: Placement, table: CalibrationTable, options: InsertOptions
) -> dict[Slot, Quantization]:
    """Return the quantization of every node input that the placement quantizes, in its order.

    Raises:
        UsageError, InputFileError: as `insert`.
    """
    view = model.view
    ranges, rounded = table.by_tensor(), table.weights.rounded if table.weights else {}
    apart = {name for tie in placement.ties for name in tie.apart if name in tie.tensors}
    narrow = _narrow_tensors(placement, options)
    sums = RowSums(view)
    by_key: dict[tuple[str, QuantSpec], Quantization] = {}
    assignment: dict[Slot, Quantization] = {}
    for decision in placement.quantized:
        slot, spec = decision.slot, decision.spec
        node = view.by_name.get(slot.node)
        if node is None or slot.index >= len(node.inputs) or node.inputs[slot.index] != decision.tensor:
            problem = f"slot {slot} does not read {decision.tensor!r} in this model"
            raise InputFileError(problem, fix=f"run {Command('place')} on this model", where=str(model.path))
        if spec is None:
            raise UsageError(
                f"the placement has no number format for node input {slot}",
                fix=f"run {Command('place')} on this model",
            )
        key = (decision.tensor, spec)
        if key not in by_key:
            chosen = rounded.get(decision.tensor)
            if chosen is not None and spec.block is not None and _fits(chosen, spec):
                by_key[key] = _rounded_blocks(chosen)
            else:
                own = options if decision.tensor in narrow else options.model_copy(update={"types": "fp32"})
                quantization = _quantization(
                    view, decision, spec, ranges, own, apart=decision.tensor in apart, sums=sums
                )
                by_key[key] = _as_rounded(quantization, chosen)
        assignment[slot] = by_key[key]
    return assignment


def _narrow_tensors(placement: Placement, options: InsertOptions) -> frozenset[str]:
    """Return the tensors whose scales `options.types` must represent exactly.

    They are inputs of nodes that become narrow, and tensors that share a scale with these.
    """
    read = {
        entry.tensor
        for entry in placement.quantized
        if not options.narrow_nodes
        or any(fnmatchcase(entry.slot.node, glob) for glob in options.narrow_nodes)
    }
    groups = classes([*((name,) for name in read), *(tie.tensors for tie in placement.ties)])
    return frozenset(name for group in groups if group & read for name in group)


def _as_rounded(nearest: Quantization, rounded: RoundedWeight | None) -> Quantization:
    """Return `nearest` with the values of `rounded`, if it is stored in the same format and scales."""
    if rounded is None or not nearest.stored or nearest.scale is None:
        return nearest
    fits = (rounded.format, rounded.axis, rounded.block) == (nearest.format, nearest.axis, nearest.block)
    fits = fits and np.array_equal(nearest.scale, rounded.scale)
    return replace(nearest, codes=rounded.codes) if fits else nearest


def _fits(rounded: RoundedWeight, spec: QuantSpec) -> bool:
    return (rounded.format, rounded.axis, rounded.block) == (spec.format, spec.axis, spec.block)


def _rounded_blocks(rounded: RoundedWeight) -> Quantization:
    """Return the quantization of a rounded weight with the block scales that its rounding used."""
    return Quantization(
        format=rounded.format,
        scale=rounded.scale,
        axis=rounded.axis,
        block=rounded.block,
        global_scale=rounded.global_scale,
        stored=True,
        codes=rounded.codes,
    )


def _quantization(
    view: GraphView,
    decision: Decision,
    spec: QuantSpec,
    ranges: Mapping[str, TensorRange],
    options: InsertOptions,
    *,
    apart: bool,
    sums: RowSums,
) -> Quantization:
    tensor, where, format_ = decision.tensor, str(decision.slot), spec.format
    here = view.info(tensor).dtype
    if here not in QUANTIZED_FROM:
        problem = f"{tensor!r} has type {here}; only fp32 and fp16 can be quantized"
        raise UsageError(problem, fix="exclude the node, or export the model in fp32", where=where)
    stored_as = _choose_scale_type(here, options)
    entry = ranges.get(tensor)
    if entry is None:
        raise InputFileError(
            f"the calibration table has no range for tensor {tensor!r}", fix=_RECALIBRATE, where=where
        )
    constant = decision.kind is SlotKind.WEIGHT
    if constant and view.constant_shape(tensor) is None:
        problem = f"{tensor!r} is marked as a weight but is not constant"
        raise InputFileError(problem, fix=f"run {Command('place')} on this model", where=where)
    axis, block = spec.axis, spec.block
    if block is None or axis is None:
        trouble = _misfit(entry, axis, view.constant_shape(tensor))
        if trouble:
            raise InputFileError(f"the range of {tensor!r} {trouble}", fix=_RECALIBRATE, where=where)
        steps = entry.scales_in(format_)
        exact = np.asarray(steps if axis is not None else steps[0], np.float32)
        stored_as = _wide_enough(stored_as, here, exact)
        scale = storable_as(exact, stored_as)
        scale = a_step_above(scale, stored_as) if apart else scale
        stored = constant and (options.weights != "qdq" if spec.stored is None else spec.stored)
        zero = 0 if constant or format_ != INT8 else entry.zero_point
        return Quantization(format=format_, scale=scale, axis=axis, stored=stored, zero_point=zero)
    if constant:
        return _in_blocks(view, decision, spec, entry, stored_as)
    level = None
    if format_.two_level:
        limit = entry.amax[0] / (format_.qmax * format_.scale_limit)
        level = float(storable_as(np.asarray(limit), stored_as))
    blocks: NDArray[np.float32] | None = None
    shape = view.info(tensor).shape
    if format_.two_level and options.blocks == "constant" and sums.in_front(tensor) is None:
        if shape is None or not all(isinstance(size, int) for size in shape):
            raise UsageError(
                f"block scales as constants need a tensor of fixed shape, but {tensor!r} has the shape {shape}",
                fix=f"{Setting('insert.blocks', 'computed')}, or export the model with fixed shapes",
                where=where,
            )
        counts = [int(size) // (block if dim == axis else 1) for dim, size in enumerate(shape)]
        blocks = np.full(counts, format_.scale_limit, np.float32)
    return Quantization(format=format_, scale=blocks, axis=axis, block=block, global_scale=level)


def _wide_enough(stored_as: DType, here: DType, scale: NDArray[np.float32]) -> DType:
    """Return FP32 as float type of a tensor if FP16 would clip its scales; then the tensor stays FP32."""
    is_wide = here is not DType.FLOAT16 and float(scale.max(initial=0.0)) > LARGEST_HALF
    return DType.FLOAT32 if is_wide and stored_as is DType.FLOAT16 else stored_as


def _in_blocks(
    view: GraphView, decision: Decision, spec: QuantSpec, entry: TensorRange, stored_as: DType
) -> Quantization:
    """Return the quantization of a constant with block scales, computed from its values."""
    value, axis, block = view.constant(decision.tensor), spec.axis, spec.block
    assert value is not None
    assert axis is not None
    assert block is not None
    length = value.shape[axis]
    if length % block:
        raise UsageError(
            f"blocks of {block} do not divide axis {axis} of {decision.tensor!r}, which has {length} values",
            fix=f"choose a block that divides {length} with place.block, or exclude the node",
            where=str(decision.slot),
        )
    scale, level = block_scales(value, spec.format, axis, block, search=entry.method == "mse")
    if spec.format.scale_dtype is None:
        scale = storable_as(scale, _wide_enough(stored_as, view.info(decision.tensor).dtype, scale))
    if level is not None:
        level = float(storable_as(np.asarray(level), stored_as))
    return Quantization(
        format=spec.format, scale=scale, axis=axis, block=block, global_scale=level, stored=True
    )


def _misfit(range_: TensorRange, axis: int | None, shape: tuple[int, ...] | None) -> str | None:
    """Return why a range cannot become a scale; None if it can. `shape` is None for run-time tensors."""
    if range_.axis != axis:
        return f"is along axis {range_.axis}, but the placement requires axis {axis}"
    amax = np.asarray(range_.amax, np.float64)
    if not (np.isfinite(amax) & (amax > 0)).all():
        return "is not a positive number"
    if axis is None:
        if shape == ():
            return "belongs to a scalar constant, which TensorRT cannot quantize"
        return (
            None if len(range_.amax) == 1 else f"has {count_noun(len(range_.amax), 'value')}, but needs one"
        )
    if shape is None:
        return "is per channel, which TensorRT allows for constants only"
    fits = 0 <= axis < len(shape) and shape[axis] == len(range_.amax)
    return (
        None
        if fits
        else f"has {count_noun(len(range_.amax), 'value')}, which do not match axis {axis} of shape {list(shape)}"
    )
