"""Takes Q/DQ off the inputs of single nodes, so that a builder may compute them in float."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx

from qdqtool.graph.edit import Edit
from qdqtool.graph.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.model import Model


def unquantize(model: Model, names: Iterable[str]) -> Model:
    """The model with float inputs at the nodes called so; Q/DQ that nobody reads any more goes.

    Where a DequantizeLinear is called so and the model returns its result, it returns the float tensor. Float tensors behind Q and DQ are read directly; INT8 constants behind DQ become float constants of the same
    value. Other readers of a pair keep it.
    """
    edit = Edit(model)
    makers = edit.producers()
    wanted = set(names)
    for node in edit.nodes:
        if node.name not in wanted:
            continue
        for index, tensor in enumerate(node.input):
            dequantize = makers.get(tensor)
            if dequantize is not None and dequantize.op_type == DEQUANTIZE:
                node.input[index] = float_source(edit, dequantize, makers) or tensor
    for value in edit.outputs:
        dequantize = makers.get(value.name)
        if dequantize is None or dequantize.op_type != DEQUANTIZE or dequantize.name not in wanted:
            continue
        source = float_source(edit, dequantize, makers)
        if source is not None:
            edit.remove([dequantize])
            edit.node("Identity", [source], [value.name], name=f"{dequantize.name}_Identity")
    edit.prune()
    return edit.finish()


def float_source(edit: Edit, dequantize: onnx.NodeProto, makers: dict[str, onnx.NodeProto]) -> str | None:
    """The tensor that is in float what the node gives; None where there is none."""
    quantize = makers.get(dequantize.input[0])
    if quantize is not None:
        return quantize.input[0] if quantize.op_type == QUANTIZE else None
    values = [edit.value(name) for name in dequantize.input]
    if values[0] is None or values[1] is None or any(value is None for value in values[2:3]):
        return None
    axis = next((int(attribute.i) for attribute in dequantize.attribute if attribute.name == "axis"), 1)
    zero = (
        values[2] if len(values) > 2 and values[2] is not None else np.zeros_like(values[1], values[0].dtype)
    )
    shape = [1] * values[0].ndim
    if values[1].ndim == 1 and values[0].ndim:
        shape[axis] = -1
    shift = values[0].astype(np.float32) - zero.astype(np.float32).reshape(shape if zero.ndim else ())
    scale = values[1].astype(np.float32).reshape(shape if values[1].ndim else ())
    return edit.constant(f"{dequantize.input[0]}_float", (shift * scale).astype(values[1].dtype))
