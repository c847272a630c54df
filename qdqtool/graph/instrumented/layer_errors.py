"""What quantization does to each layer by itself: a model that returns the mean error of every layer.

    x ----------------- Conv ---- y        the float network, from which every layer reads
    x -> Q -> DQ -> Conv' -> y'            the same layer with its own quantization only
    error = mean over positions of y - y'  one number per output channel

All layers are measured in the same run, because none of them sees what another layer's quantization did.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from onnx import helper

from qdqtool.graph.edit import Edit
from qdqtool.graph.instrumented.originals import Originals
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.trt.ops import PRODUCTS, result_axis

_AXES_ARE_INPUTS = 18
"""First opset in which ReduceMean reads its axes from an input."""


def layer_errors(model: Model, nodes: Collection[str], plain_model: Model) -> tuple[Model, dict[str, str]]:
    """The model that returns the mean error of these nodes of a Q/DQ model, and the output of each by node.

    Each output has shape (channels,): the mean over batch and positions of the float output minus the quantized one.
    Nodes whose inputs are not quantized have no error and no output. `plain_model` is the float model, whose constants
    need not be those that the Q/DQ model quantizes.
    """
    edit = Edit(model)
    makers = edit.producers()
    originals = Originals(edit, plain_model)
    ranks = {name: len(info.shape or ()) for name, info in _infos(model)}
    outputs: dict[str, str] = {}
    for node in [node for node in edit.nodes if node.op_type not in {QUANTIZE, DEQUANTIZE}]:
        plain = [_plain(makers, name) for name in node.input]
        if node.op_type in PRODUCTS:
            plain[1] = originals.constant(node, 1) or plain[1]
        if plain == list(node.input):
            continue
        if node.name in nodes and ranks.get(node.output[0]):
            outputs[node.name] = _error(edit, node, ranks[node.output[0]])
        node.input[:] = plain
    edit.outputs = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs.values()
    ]
    edit.prune()
    return edit.finish(shapes=False), outputs


def _error(edit: Edit, node: onnx.NodeProto, rank: int) -> str:
    """Add a copy of the node that reads quantized values, and the mean of what that changes."""
    quantized, moved, mean = (edit.fresh(f"{node.name}_{word}") for word in ("quantized", "moved", "error"))
    attributes: dict[str, Any] = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    edit.node(node.op_type, list(node.input), [quantized], name=quantized, **attributes)
    edit.node("Sub", [node.output[0], quantized], [moved], name=moved)
    axes = [axis for axis in range(rank) if axis != result_axis(node.op_type) % rank]
    if edit.opset >= _AXES_ARE_INPUTS:
        given = edit.constant(f"{node.name}_error_axes", np.array(axes, np.int64))
        edit.node("ReduceMean", [moved, given], [mean], name=mean, keepdims=0)
    else:
        edit.node("ReduceMean", [moved], [mean], name=mean, axes=axes, keepdims=0)
    return mean


def _plain(makers: dict[str, onnx.NodeProto], name: str) -> str:
    """The tensor in front of the Q/DQ pair that makes `name`; itself where there is none."""
    back = makers.get(name)
    if back is None or back.op_type != DEQUANTIZE:
        return name
    forth = makers.get(back.input[0])
    return forth.input[0] if forth is not None and forth.op_type == QUANTIZE else name


def _infos(model: Model) -> list[tuple[str, Any]]:
    view = model.view
    return [(name, view.info(name)) for node in view.nodes for name in node.outputs]
