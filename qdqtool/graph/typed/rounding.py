"""Lets QuantizeLinear of FP16 values round where onnxruntime cuts off: its CPU kernel did so before 1.24.

1.5 with a scale of 0.0123 is 122 steps; the old kernel makes it 121, so that every accuracy measured on an FP16 model
would be too low by half a step. Python 3.10 gets no newer onnxruntime than 1.23.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from qdqtool.core.dtypes import DType
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.save import SINGLE_FILE_LIMIT, serialize, weight_bytes
from qdqtool.graph.typed.emulate import opened

EXAMPLE, STEPS = np.asarray([1.5], np.float16), 122
"""What `example_model` is fed, and what it gives where QuantizeLinear rounds."""


def example_model() -> bytes:
    """A model with one FP16 QuantizeLinear, input "x" and output "y", for asking a runtime whether it rounds."""
    scale = helper.make_tensor("scale", onnx.TensorProto.FLOAT16, [], np.asarray([0.0123], np.float16))
    zero = helper.make_tensor("zero", onnx.TensorProto.INT8, [], [0])
    graph = helper.make_graph(
        [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"])],
        "rounding",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT16, [1])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.INT8, [1])],
        [scale, zero],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return bytes(model.SerializeToString())


def rounding(source: Path | bytes) -> bytes | None:
    """The model with its FP16 QuantizeLinear nodes in FP32, which round; None where it has none, or is too large."""
    model = opened(source)
    if model is None or weight_bytes(model) >= SINGLE_FILE_LIMIT // 2:
        return None
    view = model.view
    narrow = {
        node.name
        for node in view.nodes
        if node.op == "QuantizeLinear" and view.info(node.inputs[0]).dtype is DType.FLOAT16
    }
    return serialize(_widened(model, narrow)) if narrow else None


def _widened(model: Model, narrow: set[str]) -> Model:
    edit = Edit(model)
    wide: dict[str, str] = {}
    for node in list(edit.nodes):
        if node.name in narrow:
            for index in (0, 1):
                name = node.input[index]
                if name not in wide:
                    wide[name] = edit.fresh(f"{name}_fp32")
                    edit.node("Cast", [name], [wide[name]], name=f"{name}_widen", to=onnx.TensorProto.FLOAT)
                node.input[index] = wide[name]
    return edit.finish()
