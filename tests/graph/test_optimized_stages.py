"""Stages are cut from an optimized graph where, and only where, it is computed stage by stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.backends.ort import open_piece
from qdqtool.graph.instrumented.optimized_stages import Edges, OptimizedForms

FIRST = Edges(inputs=("x",), outputs=("t",))


def declared(*names: str) -> dict[str, onnx.ValueInfoProto]:
    return {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in names}


def forms(folder: Path, *nodes: onnx.NodeProto) -> OptimizedForms:
    values = declared("x", "t", "y")
    graph = helper.make_graph(list(nodes), "optimized", [values["x"]], [values["t"], values["y"]])
    path = folder / "optimized.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return OptimizedForms([path], values, {"x", "y"})


def node(op: str, source: str, target: str) -> onnx.NodeProto:
    return helper.make_node(op, [source], [target], name=f"{op}_{target}")


def test_a_chain_is_cut_and_its_parts_compute_the_whole(tmp_path: Path) -> None:
    made = forms(tmp_path, node("Abs", "x", "a"), node("Sqrt", "a", "t"), node("Neg", "t", "y"))
    second = Edges(inputs=("t",), outputs=("y",))
    assert made.can_be_cut([FIRST, second])
    state = {"x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3)}
    for edges in (FIRST, second):
        runner = open_piece(made.part(0, edges), description="part", optimized=False, threads=1)
        state |= runner.run({name: state[name] for name in edges.inputs})
    np.testing.assert_array_equal(state["y"], -np.sqrt(np.abs(state["x"])))


def test_what_goes_around_a_cut_cannot_be_cut_there(tmp_path: Path) -> None:
    made = forms(tmp_path, node("Abs", "x", "a"), node("Sqrt", "a", "t"), node("Neg", "a", "y"))
    second = Edges(inputs=("t",), outputs=("y",))
    assert not made.can_be_cut([FIRST, second])
    with pytest.raises(ValueError, match="cut at t"):
        made.part(0, second)


def test_a_node_that_two_stages_would_compute_cannot_be_cut(tmp_path: Path) -> None:
    """The second would compute it in its own form, whatever form the first one has."""
    made = forms(tmp_path, node("Abs", "x", "a"), node("Sqrt", "a", "t"), node("Neg", "a", "y"))
    assert not made.can_be_cut([FIRST, Edges(inputs=("t", "x"), outputs=("y",))])
