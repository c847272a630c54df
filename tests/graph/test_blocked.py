"""Outputs in blocks of channels are taken as they are, unless the blocks are filled up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.graph.instrumented.blocked import DOMAIN, may_be_blocked, return_blocked
from qdqtool.graph.view import GraphView


def saved(folder: Path, nodes: list[onnx.NodeProto], outputs: list[str], filters: int = 32) -> Path:
    """A model as onnxruntime saves it after optimizing."""
    weight = numpy_helper.from_array(np.zeros((filters, 16, 1, 1), np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 32, 4, 4]) for name in outputs]
    start = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 16, 4, 4])]
    graph = helper.make_graph(nodes, "g", start, values, initializer=[weight])
    path = folder / "optimized.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def conv(output: str) -> onnx.NodeProto:
    return helper.make_node("Conv", ["x", "w"], [output], domain=DOMAIN)


def reordered(source: str, output: str, channels: int = 32, **attributes: int) -> onnx.NodeProto:
    return helper.make_node(
        "ReorderOutput", [source], [output], domain=DOMAIN, channels=channels, **attributes
    )


def test_a_model_without_blocks_is_left_alone(tmp_path: Path) -> None:
    path = saved(tmp_path, [helper.make_node("Conv", ["x", "w"], ["y"])], ["y"])
    before = path.read_bytes()
    assert return_blocked(path) == {}
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "between",
    [[], [("MaxPool", DOMAIN)], [("Sigmoid", ""), ("Mul", "")]],
    ids=["a convolution", "pooling behind it", "an activation behind it"],
)
def test_the_reordering_of_whole_blocks_is_left_out(tmp_path: Path, between: list[tuple[str, str]]) -> None:
    nodes, last = [conv("blocks")], "blocks"
    for op, domain in between:
        inputs = [last, "blocks"] if op == "Mul" else [last]
        nodes.append(helper.make_node(op, inputs, [f"{op}_blocks"], domain=domain))
        last = f"{op}_blocks"
    path = saved(tmp_path, [*nodes, reordered(last, "y")], ["y"])
    assert return_blocked(path) == {"y": last}
    graph = onnx.load(path).graph
    assert [value.name for value in graph.output] == [last]
    assert "ReorderOutput" not in {node.op_type for node in graph.node}


def test_a_reordering_that_another_node_reads_stays_for_it(tmp_path: Path) -> None:
    nodes = [conv("blocks"), reordered("blocks", "y"), helper.make_node("Softplus", ["y"], ["z"])]
    path = saved(tmp_path, nodes, ["y", "z"])
    assert return_blocked(path) == {"y": "blocks"}
    assert len(onnx.load(path).graph.node) == 3


@pytest.mark.parametrize(
    "nodes",
    [
        [conv("blocks"), reordered("blocks", "y", 24)],
        [conv("blocks"), reordered("blocks", "y", channels_last=1)],
        [helper.make_node("ReorderInput", ["x"], ["blocks"], domain=DOMAIN), reordered("blocks", "y")],
        [conv("c"), helper.make_node("Concat", ["c", "c"], ["blocks"], axis=1), reordered("blocks", "y", 64)],
    ],
    ids=["filled up", "another order", "an input", "an operator that changes channels"],
)
def test_outputs_whose_blocks_may_be_filled_up_stay_as_they_are(
    tmp_path: Path, nodes: list[onnx.NodeProto]
) -> None:
    path = saved(tmp_path, nodes, ["y"])
    before = path.read_bytes()
    assert return_blocked(path) == {}
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        (["Conv"], True),
        (["Conv", "Relu", "MaxPool"], True),
        (["Conv", "Sigmoid", "Concat"], True),
        (["Conv", "Transpose"], False),
        (["MatMul", "Relu"], False),
        (["Relu"], False),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_only_what_a_convolution_lays_out_may_be_blocked(ops: list[str], expected: bool) -> None:
    names = ["x", *(f"{op}_y" for op in ops)]
    nodes = [
        helper.make_node(op, [source], [target])
        for op, source, target in zip(ops, names, names[1:], strict=False)
    ]
    graph = helper.make_graph(nodes, "g", [], [])
    view = GraphView(helper.make_model(graph))
    assert may_be_blocked(view, ["x", names[-1]]) is expected
    assert not may_be_blocked(view, ["x", "w"])
