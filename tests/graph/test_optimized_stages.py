"""Stages are cut from an optimized graph where, and only where, it is computed stage by stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.graph.instrumented.optimized_stages import Edges, OptimizedForms
from qdqtool.runtime.runner import open_piece

FIRST = Edges(inputs=("x",), outputs=("t",))
SECOND = Edges(inputs=("t",), outputs=("y",))


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
    assert made.can_be_cut([FIRST, SECOND])
    state = {"x": np.arange(-3, 3, dtype=np.float32).reshape(2, 3)}
    for edges in (FIRST, SECOND):
        runner = open_piece(made.part(0, edges), description="part", optimized=False, threads=1)
        state |= runner.run({name: state[name] for name in edges.inputs})
    np.testing.assert_array_equal(state["y"], -np.sqrt(np.abs(state["x"])))


def test_what_goes_around_a_cut_cannot_be_cut_there(tmp_path: Path) -> None:
    made = forms(tmp_path, node("Abs", "x", "a"), node("Sqrt", "a", "t"), node("Neg", "a", "y"))
    assert not made.can_be_cut([FIRST, SECOND])
    with pytest.raises(ValueError, match="cut at t"):
        made.part(0, SECOND)


def test_a_node_that_two_stages_would_compute_cannot_be_cut(tmp_path: Path) -> None:
    """The second would compute it in its own form, whatever form the first one has."""
    made = forms(tmp_path, node("Abs", "x", "a"), node("Sqrt", "a", "t"), node("Neg", "a", "y"))
    assert not made.can_be_cut([FIRST, Edges(inputs=("t", "x"), outputs=("y",))])


def test_no_name_stands_twice_where_the_forms_name_their_reorderings_alike(tmp_path: Path) -> None:
    """Which of its reorderings onnxruntime gives the plain name hangs on where it found memory."""

    def blocked(number: int, first: str, last: str) -> Path:
        def reorder(op: str, source: str, target: str, name: str) -> onnx.NodeProto:
            size = {"channels": 3} if op == "ReorderOutput" else {}
            return helper.make_node(op, [source], [target], name=name, domain="com.microsoft.nchwc", **size)

        nodes = [
            reorder("ReorderInput", "x", "xb", "ReorderInput"),
            node("Relu", "xb", "tb"),
            reorder("ReorderOutput", "tb", "t", first),
            node("Neg", "tb", "yb"),
            reorder("ReorderOutput", "yb", "y", last),
        ]
        values = declared("x", "t", "y")
        graph = helper.make_graph(nodes, "optimized", [values["x"]], [values["t"], values["y"]])
        path = tmp_path / f"{number}.onnx"
        onnx.save(helper.make_model(graph), str(path))
        return path

    paths = [blocked(0, "ReorderOutput", "ReorderOutput_1"), blocked(1, "ReorderOutput_1", "ReorderOutput")]
    made = OptimizedForms(paths, declared("x", "t", "y"), {"x", "y"})
    assert made.blocked == {"t": "t.blocked"}
    plain = helper.make_graph(
        [helper.make_node("Neg", ["t"], ["y"], name="ReorderOutput")],
        "stage",
        [declared("t")["t"]],
        [declared("y")["y"]],
    )
    adapted = made.adapted(helper.make_model(plain).SerializeToString(), SECOND)
    for model in (made.part(0, FIRST), made.part(0, SECOND), made.part(1, SECOND), adapted):
        graph = onnx.load_model_from_string(model).graph
        names = [one.name for one in graph.node if one.name]
        assert len(names) == len(set(names)), [(one.op_type, one.name) for one in graph.node]
    assert [one.op_type for one in onnx.load_model_from_string(adapted).graph.node] == [
        "ReorderOutput",
        "Neg",
    ]
