"""Quantizes single inputs afresh, or makes them float: every input edited gets a Q/DQ pair of its own or none."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from qdqtool.core.dtypes import DType
from qdqtool.core.fixes import SlotEdit
from qdqtool.errors import UsageError
from qdqtool.graph.edit import Edit
from qdqtool.graph.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.model import Model
from qdqtool.graph.scales import storable
from qdqtool.graph.unquantize import float_source


def requantize(model: Model, edits: Iterable[SlotEdit]) -> Model:
    """The Q/DQ model with these inputs quantized so, whatever was in front of them; other readers keep their pairs.

    Raises:
        UsageError: the model has no such input, or its integers come from a place that has no float form.
    """
    edit = Edit(model)
    makers = edit.producers()
    nodes = {node.name: node for node in edit.nodes}
    for change in sorted(edits, key=lambda change: change.slot):
        node = nodes.get(change.slot.node)
        if node is None or change.slot.index >= len(node.input):
            raise UsageError(
                f"there is no input {change.slot}", fix="name one of this model", where=str(model.path)
            )
        source = _source(edit, model, makers, node.input[change.slot.index])
        if source is None:
            raise UsageError(
                f"what {change.slot} reads has no float form", fix="edit its producer", where=str(model.path)
            )
        node.input[change.slot.index] = _pair(edit, model, change, source) if change.scales else source
    edit.prune()
    return edit.finish()


def _source(edit: Edit, model: Model, makers: dict[str, onnx.NodeProto], tensor: str) -> str | None:
    """The float tensor that an input reads, before all Q/DQ pairs and before Casts that lead back to its type."""
    source = _before_pair(edit, model, makers, tensor)
    while source is not None and source != tensor:
        tensor = source
        source = _before_pair(edit, model, makers, tensor)
    return source


def _before_pair(edit: Edit, model: Model, makers: dict[str, onnx.NodeProto], tensor: str) -> str | None:
    """The same for one pair; `tensor` itself where there is none."""
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


def _pair(edit: Edit, model: Model, change: SlotEdit, source: str) -> str:
    """Add a pair for one input and return the tensor that comes out of it."""
    stem = f"{source}_{change.slot.node}_{change.slot.index}"
    half = model.view.info(source).dtype is DType.FLOAT16
    steps = np.asarray(change.scales if change.axis is not None else change.scales[0], np.float32)
    scale = storable(steps, half=half)
    names = [
        edit.constant(f"{stem}_scale", scale.astype(np.float16) if half else scale),
        edit.constant(f"{stem}_zero_point", np.zeros(scale.shape, np.int8)),
    ]
    along = {} if change.axis is None else {"axis": change.axis}
    integers, result = edit.fresh(f"{stem}_quantized"), edit.fresh(f"{stem}_dequantized")
    edit.node(QUANTIZE, [source, *names], [integers], name=f"{stem}_{QUANTIZE}", **along)
    edit.node(DEQUANTIZE, [integers, *names], [result], name=f"{stem}_{DEQUANTIZE}", **along)
    return result
