"""The types of values that placement quantizes are those that insertion can put Q/DQ on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.recipe import InsertOptions, PlacementOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.insert import insert
from qdqtool.placement.decide import decide
from tests import models


@pytest.mark.parametrize(
    "kind", [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE]
)
@pytest.mark.parametrize("scheme", ["int8", "fp8"])
def test_whatever_is_placed_can_be_inserted(kind: int, scheme: str, tmp_path: Path) -> None:
    weight = helper.make_tensor("w", kind, (64, 64), np.linspace(-1, 1, 64 * 64))
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm")
    values = [helper.make_tensor_value_info(name, kind, (32, 64)) for name in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [weight])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = load(models.save(proto, tmp_path))
    placement = decide(model.view, PlacementOptions(format=scheme, sm=("89",)))
    ranges = [
        TensorRange(tensor=each.tensor, amax=(1.0,) * (64 if each.spec and each.spec.axis is not None else 1),
                    axis=each.spec.axis if each.spec else None)
        for each in placement.quantized
    ]  # fmt: skip
    made = insert(model, placement, CalibrationTable(ranges=tuple(ranges)), InsertOptions())
    quantized = any(node.op == "DequantizeLinear" for node in made.view.nodes)
    assert quantized is (kind in {TensorProto.FLOAT, TensorProto.FLOAT16})
    refused = [
        said
        for each in placement.decisions
        for said in each.opinions
        if "only FP32 and FP16 values" in said.reason
    ]
    assert bool(refused) is not quantized
    assert all("export this part in FP32 or FP16" in said.fix for said in refused)
