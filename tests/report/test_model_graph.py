"""The model with Q and DQ nodes as a drawing: pairs become the types and scales of tensors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.report.assemble import assemble
from qdqtool.report.drawing import draw, network
from qdqtool.report.html import details, render
from qdqtool.report.rows import model_rows
from qdqtool.report.sections.model import PLUGIN
from qdqtool.report.svg import inline
from tests.report.material import chain_material

COLLECT = PLUGIN["model"].collect


def quantized(path: Path, rows: int | str = 2) -> Path:
    """Write x -> Q -> DQ -> layer0 -> layer1 -> y, where layer1 is float and adds x."""
    constants = {"s": np.float32(0.25), "z": np.int8(0), "w": np.ones((4, 4), np.int8), "v": np.float32(0.5)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="Q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], name="DQ"),
        helper.make_node("DequantizeLinear", ["w", "v", "z"], ["e"], name="WDQ"),
        helper.make_node("MatMul", ["d", "e"], ["m"], name="layer0"),
        helper.make_node("Add", ["m", "x"], ["y"], name="layer1"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 4]) for name in ("x", "y")]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(model, path)
    return path


def test_a_run_without_a_quantized_model_has_no_drawing_of_it() -> None:
    assert COLLECT is not None
    assert COLLECT({}) is None
    assert 'data-kind="node"' not in render(assemble(chain_material(2)))


def test_a_damaged_model_leaves_the_rest_of_the_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert COLLECT is not None
    (tmp_path / "model.qdq.onnx").write_bytes(b"no model")
    assert COLLECT({"model.qdq.onnx": tmp_path / "model.qdq.onnx"}) is None
    assert "the model is not drawn" in caplog.text


@pytest.mark.parametrize("size", [2, "batch"])
def test_pairs_are_types_and_scales_of_tensors_and_float_nodes_keep_their_reason(
    size: int | str, tmp_path: Path
) -> None:
    assert COLLECT is not None
    rows = COLLECT({"model.qdq.onnx": quantized(tmp_path / "model.qdq.onnx", size)})
    report = assemble(replace(chain_material(2), sections={"model": rows}))
    nodes = model_rows(report)
    assert [node.name for node in nodes] == ["layer0", "layer1"]
    assert [(each.name, each.dtype.value, each.format) for each in nodes[0].inputs] == [
        ("x", "int8", "scale 0.25")
    ]
    assert [(each.name, each.dtype.value, each.format) for each in nodes[0].constants] == [
        ("w", "int8", "scale 0.5")
    ]
    drawing = inline(draw(network(nodes)))
    assert "int8 scale 0.25" in drawing
    assert "QuantizeLinear" not in drawing
    (verdict,) = (each for each in report.verdicts if each.node == "layer1")
    said = details(replace(report, layers=nodes))[1]["lists"]
    assert verdict.verdict.value in str(said)
    assert verdict.reason in str(said)
    assert render(report).count('class="drawn"') == 2
