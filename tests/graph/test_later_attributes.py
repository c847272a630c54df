"""Q/DQ nodes with attributes of a later opset than the model states, as modelopt.onnx writes INT4 blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.core.target import Target
from qdqtool.errors import InputFileError
from qdqtool.graph.canonical import opset
from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.predict import predict
from tests import models


def in_blocks(opset: int, attribute: str = "block_size") -> onnx.ModelProto:
    """A product with INT4 weights in blocks of 32, and a ReduceMean in its form of before opset 18."""
    rng = np.random.default_rng(0)
    weight = helper.make_tensor("w", TensorProto.INT4, [64, 32], rng.integers(-8, 8, 64 * 32).tolist())
    scale = numpy_helper.from_array(np.full((2, 32), 0.05, np.float32), "s")
    blocks = {attribute: 32}
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], "dq", axis=0, **blocks),
        helper.make_node("MatMul", ["x", "wd"], ["y"], "product"),
        helper.make_node("ReduceMean", ["y"], ["mean"], "mean", axes=[1], keepdims=1),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "mean")]
    values[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4, 64])
    graph = helper.make_graph(nodes, "blocks", values[:1], values[1:], [weight, scale])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("stated", [13, 17])
def test_the_opset_is_that_of_the_attributes(stated: int, tmp_path: Path) -> None:
    model = load(models.save(in_blocks(stated), tmp_path))
    assert model.notes == (f"opset raised from {stated} to 21",)
    assert [(entry.domain, entry.version) for entry in model.proto.opset_import] == [("", 21)]
    assert [node.op for node in model.view.nodes] == ["DequantizeLinear", "MatMul", "ReduceMean"]
    assert {node.domain for node in model.view.nodes} == {""}
    assert model.view.by_name["dq"].attribute("block_size", 0) == 32
    (told,) = (node for node in predict(model, Target.parse("rtx")).nodes if node.node == "product")
    assert told.realised == "int4-weights"


def test_an_attribute_of_no_opset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="Unrecognized attribute: blocks"):
        load(models.save(in_blocks(17, "blocks"), tmp_path))


def test_the_schemas_of_onnx_are_looked_through_once_per_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    # For each node of a quantized model that took seconds.
    asked = []
    every = onnx.defs.get_schema
    monkeypatch.setattr(onnx.defs, "get_schema", lambda *words: asked.append(words) or every(*words))
    opset._versions.cache_clear()
    proto = in_blocks(17)
    assert opset.find_written_opset(proto) == 21
    once = len(asked)
    proto.graph.node.extend([proto.graph.node[0]] * 50)
    assert opset.find_written_opset(proto) == 21
    assert len(asked) == once > 0
