"""Writes a placement and its scales into a model as Q/DQ nodes that TensorRT accepts and fuses."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.conversion import DynamicRangeReport
from qdqtool.core.dtypes import DType
from qdqtool.core.placement import Decision, Placement, SlotKind
from qdqtool.core.quant_format import INT8
from qdqtool.core.recipe import InsertOptions
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.bias import shift_biases
from qdqtool.graph.edit import Edit
from qdqtool.graph.find import DEQUANTIZE, QUANTIZE, quantized_ops
from qdqtool.graph.model import Model
from qdqtool.graph.scales import a_step_above, storable_as
from qdqtool.graph.typed.convert import convert, with_opset

if TYPE_CHECKING:
    from numpy.typing import NDArray

_RECALIBRATE = "run `qdqtool calibrate` with this model and placement"


def insert(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    options: InsertOptions,
    reach: DynamicRangeReport | None = None,
) -> Model:
    """The model with a Q/DQ pair of its own for every quantized slot.

    Symmetric INT8: zero point int8 0, activations with one scalar scale, weights with a scale per channel along the
    placement's axis; tensors that a tie wants apart get the next larger scale. Biases stay float, shifted where the
    table says so. `options.weights == "int8"` stores quantized weights behind a DequantizeLinear alone;
    `options.types` other than "fp32" turns the float rest into that type as `convert` does, with the overflows that
    `reach` found on samples.
    Nodes are named `<tensor>_<node>_<input>_QuantizeLinear` and `..._DequantizeLinear`.

    Raises:
        UsageError: the model has Q/DQ nodes already, or the placement asks for anything but INT8.
        InputFileError: placement or table belong to another model, or a range is missing or not a positive number.
    """
    refuse_quantized(model)
    if table.shifts:
        model = shift_biases(model, table.shifts)
    if options.types != "fp32":
        model = with_opset(model, options.types, quantized=True)
    elif any(model.view.info(decision.tensor).dtype is DType.FLOAT16 for decision in placement.quantized):
        model = with_opset(model, "fp16", quantized=True)
    writer = _Writer(model, placement, table, options)
    for decision in placement.quantized:
        writer.write(decision)
    written = writer.finish()
    return written if options.types == "fp32" else convert(written, options, reach)[0]


def refuse_quantized(model: Model) -> None:
    """Stop where somebody has quantized the model already.

    Raises:
        UsageError: the model has Q/DQ nodes or quantized operators.
    """
    there = quantized_ops(model)
    if there:
        raise UsageError(
            f"has quantized operators already: {', '.join(there)}",
            fix="start from the float model, or keep this one: run `qdqtool repair` on it, then build and audit",
            where=str(model.path),
        )


def quantize(value: NDArray[Any], scale: NDArray[Any], axis: int | None) -> NDArray[np.int8]:
    """What QuantizeLinear makes of `value`: round half to even, saturate to [-128, 127]."""
    if axis is not None:
        scale = scale.reshape([-1 if dim == axis else 1 for dim in range(value.ndim)])
    steps = np.rint(value.astype(np.float32) / scale.astype(np.float32))
    return np.clip(steps, -128, 127).astype(np.int8)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Stored:
    """Names of the constants that say how one tensor becomes integers."""

    scale: str
    zero_point: str
    integers: str | None


class _Writer:
    """Adds pairs to one model, storing the constants of each tensor once."""

    def __init__(
        self, model: Model, placement: Placement, table: CalibrationTable, options: InsertOptions
    ) -> None:
        self._model = model
        self._edit = Edit(model)
        self._nodes = {node.name: node for node in self._edit.nodes}
        self._slots = {(decision.slot.node, decision.slot.index) for decision in placement.quantized}
        self._ranges = table.by_tensor()
        self._apart = {name for tie in placement.ties for name in tie.apart if name in tie.tensors}
        self._options = options
        self._stored: dict[tuple[str, int | None], _Stored] = {}

    def write(self, decision: Decision) -> None:
        """Put a pair in front of one slot."""
        node, index = self._nodes.get(decision.slot.node), decision.slot.index
        if node is None or index >= len(node.input) or node.input[index] != decision.tensor:
            what = f"slot {decision.slot} does not read {decision.tensor!r} in this model"
            raise InputFileError(what, fix="run `qdqtool place` on this model", where=str(self._model.path))
        if decision.spec is None or decision.spec.format != INT8:
            wish = decision.spec.format if decision.spec else "no type"
            raise UsageError(f"{decision.slot} asks for {wish}", fix="ask for int8: nothing else is inserted")
        key = (decision.tensor, decision.spec.axis)
        if key not in self._stored:
            self._stored[key] = self._store(decision, decision.spec.axis)
        node.input[index] = self._pair(decision, self._stored[key], decision.spec.axis)

    def finish(self) -> Model:
        """The model with all pairs; float weights that nobody reads any more are gone."""
        self._edit.prune()
        return self._edit.finish()

    def _pair(self, decision: Decision, stored: _Stored, axis: int | None) -> str:
        """Add the nodes for one slot and return the tensor that the slot reads from now on."""
        edit, slot = self._edit, decision.slot
        stem = f"{decision.tensor}_{slot.node}_{slot.index}"
        along = {} if axis is None else {"axis": axis}
        integers = stored.integers
        if integers is None:
            integers = edit.fresh(f"{stem}_quantized")
            inputs = [decision.tensor, stored.scale, stored.zero_point]
            edit.node(QUANTIZE, inputs, [integers], name=f"{stem}_{QUANTIZE}", **along)
        result = edit.fresh(f"{stem}_dequantized")
        inputs = [integers, stored.scale, stored.zero_point]
        edit.node(DEQUANTIZE, inputs, [result], name=f"{stem}_{DEQUANTIZE}", **along)
        return result

    def _store(self, decision: Decision, axis: int | None) -> _Stored:
        """Store scale and zero point, and the integers where these replace a float weight."""
        edit, tensor = self._edit, decision.tensor
        here = self._model.view.info(tensor).dtype
        if here not in {DType.FLOAT32, DType.FLOAT16, DType.UNKNOWN}:
            what = f"{tensor!r} has type {here}; only fp32 and fp16 can be quantized"
            raise UsageError(
                what, fix="exclude the node, or export the model in fp32", where=str(decision.slot)
            )
        half = here is DType.FLOAT16
        stored_as = here if half else DType(self._options.types)
        scale = storable_as(self._scale(decision, axis), stored_as)
        if tensor in self._apart:
            scale = a_step_above(scale, stored_as)
        integers = None
        if self._options.weights == "int8" and decision.kind is SlotKind.WEIGHT:
            value = self._model.view.constant(tensor)
            if value is None:
                what = f"{tensor!r} is called a weight but is not constant"
                raise InputFileError(what, fix="run `qdqtool place` on this model", where=str(decision.slot))
            integers = tensor if self._replaceable(tensor) else edit.fresh(f"{tensor}_int8")
            edit.put(integers, quantize(value, scale, axis))
        return _Stored(
            scale=edit.constant(f"{tensor}_scale", scale.astype(np.float16) if half else scale),
            zero_point=edit.constant(f"{tensor}_zero_point", np.zeros(scale.shape, np.int8)),
            integers=integers,
        )

    def _replaceable(self, tensor: str) -> bool:
        """Whether nobody needs the float form of a constant any more, so that its integers may take its name."""
        uses = self._model.view.uses(tensor)
        return tensor not in self._edit.pinned and all(
            (use.node.name, use.index) in self._slots for use in uses
        )

    def _scale(self, decision: Decision, axis: int | None) -> NDArray[np.float32]:
        """The scale as the table has it, in the shape that the node needs: scalar, or one value per channel."""
        tensor, where = decision.tensor, str(decision.slot)
        found = self._ranges.get(tensor)
        if found is None:
            raise InputFileError(f"the table has no range for {tensor!r}", fix=_RECALIBRATE, where=where)
        trouble = _misfit(found, axis, self._model.view.constant_shape(tensor))
        if trouble:
            raise InputFileError(f"the range of {tensor!r} {trouble}", fix=_RECALIBRATE, where=where)
        return np.asarray(found.scales if axis is not None else found.scales[0], np.float32)


def _misfit(found: TensorRange, axis: int | None, shape: tuple[int, ...] | None) -> str | None:
    """Why a range cannot become a scale; `shape` is None for run-time tensors, which take one scale only."""
    if found.axis != axis:
        return f"is along axis {found.axis}, the placement asks for axis {axis}"
    if not all(isfinite(amax) and amax > 0 for amax in found.amax):
        return "is not a positive number"
    if axis is None:
        if shape == ():
            return "belongs to a scalar constant, which TensorRT cannot quantize"
        return None if len(found.amax) == 1 else f"has {len(found.amax)} values where one is needed"
    if shape is None:
        return "is per channel, which TensorRT allows for constants only"
    fits = 0 <= axis < len(shape) and shape[axis] == len(found.amax)
    return (
        None if fits else f"has {len(found.amax)} values, which do not fit axis {axis} of shape {list(shape)}"
    )
