"""Matrix products of one tensor are one kernel, on whichever side of them it stands: foreseen as TensorRT for RTX builds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.run import predict
from tests import models
from tests.placement.building import build, quantized

pytestmark = pytest.mark.slow  # an engine for every case


def products(rows: tuple[int, ...], *, is_left: bool) -> onnx.ModelProto:
    """One product of the same tensor per entry of `rows`, with a constant of so many rows, or columns."""
    random = np.random.default_rng(0)
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    constants, outputs = [], []
    for number, count in enumerate(rows):
        shape = (count, 32) if is_left else (32, count)
        constants.append(numpy_helper.from_array(random.normal(size=shape).astype(np.float32), f"w{number}"))
        inputs = [f"w{number}", "y"] if is_left else ["y", f"w{number}"]
        nodes.append(helper.make_node("MatMul", inputs, [f"m{number}"], name=f"product{number}"))
        nodes.append(helper.make_node("Sigmoid", [f"m{number}"], [f"s{number}"], name=f"gate{number}"))
        out = (8, count, 32) if is_left else (8, 32, count)
        outputs.append(helper.make_tensor_value_info(f"s{number}", onnx.TensorProto.FLOAT, out))
    entry = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (8, 32, 32))
    graph = helper.make_graph(nodes, "products", [entry], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("rows", [(32, 32), (32, 64), (32, 32, 48)])
@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("is_int8", [True, False])
def test_products_of_one_tensor_are_merged(
    rows: tuple[int, ...], is_left: bool, is_int8: bool, tmp_path: Path
) -> None:
    float_form = products(rows, is_left=is_left)
    proto = quantized(float_form)[0].proto if is_int8 else float_form
    told = predict(load(models.save(proto, tmp_path)))
    assert len(told.layers) == len(build(proto).kernels)
    names = {f"product{number}" for number in range(len(rows))}
    assert any(names <= set(layer.nodes) for layer in told.layers)
