"""Changes single inputs of nodes: an edited input gets a separate Q/DQ pair, or becomes float."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.fixes import SlotChange, SlotEdit
from qdqtool.core.placement import QdqPair, Slot
from qdqtool.core.tensors import INT8, DType
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.encode import storable_as
from qdqtool.graph.qdq.find import DEQUANTIZE, find
from qdqtool.graph.qdq.lower import Quantization, QuantizedGraph, lower
from qdqtool.graph.qdq.unquantize import float_source, with_zero_points
from qdqtool.graph.qdq.zero_points import with_constants
from qdqtool.graph.view import Model

_FLOAT = "float"
_ROUNDING = 2**-8
"""Relative difference of a number and its rounded value in BF16, at most."""


def requantize(model: Model, edits: Iterable[SlotEdit]) -> Model:
    """Return the Q/DQ model in which these inputs are quantized again; other consumers of their tensors keep their pairs.

    Raises:
        UsageError: the model has no such input, or its integers come from a place that has no float form.
    """
    shifted = with_zero_points(model)
    if shifted is model:
        return _requantize_slots(model, edits, {})
    # the edited scale is for the shifted values, so the slot keeps its zero point
    zeros = {
        slot: pair.zero_point[0] for pair in find(shifted) if any(pair.zero_point) for slot in pair.slots
    }
    return with_constants(_requantize_slots(shifted, edits, zeros))[0]


def _requantize_slots(model: Model, edits: Iterable[SlotEdit], zeros: Mapping[Slot, int]) -> Model:
    """Requantize a model without recorded zero points. `zeros` gives those of node inputs that stay INT8 with one scale."""
    edit = Edit(model)
    makers = edit.producers()
    nodes = {node.name: node for node in edit.nodes}
    assignment: dict[Slot, Quantization] = {}
    for change in sorted(edits, key=lambda change: change.slot):
        node = nodes.get(change.slot.node)
        if node is None or change.slot.index >= len(node.input):
            raise UsageError(
                f"the model has no input {change.slot}",
                fix="pass an input of this model",
                where=str(model.path),
            )
        source = _source(edit, model, makers, node.input[change.slot.index])
        if source is None:
            raise UsageError(
                f"found no float tensor before the Q/DQ of node input {change.slot}",
                fix="edit the node that produces this input",
                where=str(model.path),
            )
        node.input[change.slot.index] = source
        if change.measured_scales:
            quantization = _quantization(change, model.view.info(source).dtype)
            keeps_zero = quantization.format == INT8 and quantization.axis is None
            zero = zeros.get(change.slot, 0) if keeps_zero else 0
            assignment[change.slot] = replace(quantization, zero_point=zero)
    edit.prune()
    return lower(QuantizedGraph(model=edit.finish(), assignment=assignment))


def slot_changes(before: Model, after: Model) -> tuple[SlotChange, ...]:
    """Return the inputs, of nodes in both models, that are quantized differently; in the order of the second model.

    A scale that only became an FP16 or BF16 number counts as the same scale.
    """
    was, now = _read(before), _read(after)
    return tuple(
        SlotChange(slot=slot, before=_words(was.get(slot)), after=_words(now.get(slot)))
        for node in after.view.nodes
        if node.name in before.view.by_name
        for slot in (Slot(node=node.name, index=index) for index in range(len(node.inputs)))
        if not _is_same(was.get(slot), now.get(slot))
    )


def _read(model: Model) -> dict[Slot, QdqPair]:
    """Return the Q/DQ pair that each quantized node input reads."""
    return {slot: pair for pair in find(model) if pair.dequantize for slot in pair.slots}


def _is_same(was: QdqPair | None, now: QdqPair | None) -> bool:
    if was is None or now is None or len(was.scale) != len(now.scale):
        return _words(was) == _words(now)
    return _words(replace(was, scale=now.scale)) == _words(now) and bool(
        np.allclose(was.scale, now.scale, rtol=_ROUNDING, atol=0)
    )


def _words(pair: QdqPair | None) -> str:
    """Describe how one node input is quantized."""
    if pair is None:
        return _FLOAT
    if not pair.scale:
        return f"{pair.dtype} with a computed scale"
    several = len(pair.scale) > 1
    scale = f"{count_noun(len(pair.scale), 'scale')}, axis {pair.axis}" if several else f"{pair.scale[0]:.4g}"
    shape = " of shape [1]" if pair.scale_shape == (1,) else ""
    zeros = sorted(set(pair.zero_point))
    zero = f" zero point {zeros[-1]}" if any(zeros) else ""
    return f"{pair.dtype} {scale}{shape}{zero}"


def float_value(edit: Edit, model: Model, tensor: str) -> NDArray[Any] | None:
    """Return the float values of a constant before all Q/DQ; None for computed tensors."""
    source = _source(edit, model, edit.producers(), tensor)
    return None if source is None else edit.value(source)


def _source(edit: Edit, model: Model, makers: dict[str, onnx.NodeProto], tensor: str) -> str | None:
    """Return the float tensor of a node input, before all Q/DQ pairs and before Casts that return to its type."""
    source = _before_pair(edit, model, makers, tensor)
    while source is not None and source != tensor:
        tensor = source
        source = _before_pair(edit, model, makers, tensor)
    return source


def _before_pair(edit: Edit, model: Model, makers: dict[str, onnx.NodeProto], tensor: str) -> str | None:
    """Return the float tensor before one Q/DQ pair; `tensor` itself if there is none."""
    maker = makers.get(tensor)
    while maker is not None and maker.op_type == "Cast":
        maker = makers.get(maker.input[0])
    if maker is None or maker.op_type != DEQUANTIZE:
        return tensor
    if (
        makers[tensor] is not maker
        and model.view.info(maker.output[0]).dtype is not model.view.info(tensor).dtype
    ):
        return tensor
    return float_source(edit, maker, makers)


def _quantization(edit: SlotEdit, dtype: DType) -> Quantization:
    """Return the quantization that an edit asks for, with scales that the tensor's float type represents exactly."""
    steps = np.asarray(edit.measured_scales if edit.axis is not None else edit.measured_scales[0], np.float32)
    return Quantization(format=edit.format, scale=storable_as(steps, dtype), axis=edit.axis)
