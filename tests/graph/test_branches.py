"""Ifs that constants and shapes decide give way to the branch that is taken, and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from qdqtool.core.recipe import PrepareOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model

BY_SHAPE, BY_VALUE, BY_RANK = "shape", "value", "rank"


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)


def scale(result: str, factor: float, reads: str, depth: int) -> list[onnx.NodeProto]:
    """Multiplies by a Constant that is called the same in both branches of an If."""
    constant = numpy_helper.from_array(np.float32(factor), "factor")
    return [
        helper.make_node("Constant", [], [f"factor{depth}"], value=constant),
        helper.make_node("Mul", [reads, f"factor{depth}"], [result]),
    ]


def branch(kinds: tuple[str, ...], factor: float, depth: int) -> onnx.GraphProto:
    """A branch without an If (no kind left), or with one inside."""
    out = f"out{depth}"
    if not kinds:
        return helper.make_graph(scale(out, factor, "r", depth), "leaf", [], [value(out)])
    nodes = [*decision(kinds, factor, depth), *scale(out, 1.5, f"chosen{depth}", depth)]
    return helper.make_graph(nodes, "inner", [], [value(out)])


def decision(kinds: tuple[str, ...], factor: float, depth: int) -> list[onnx.NodeProto]:
    """An If over `r`, the nodes of its condition before it."""
    s, g, k = (f"{name}{depth}" for name in "sgk")
    makers = {
        BY_SHAPE: [
            helper.make_node("Shape", ["r"], [s]),
            helper.make_node("Gather", [s, "last"], [g]),
            helper.make_node("Equal", [g, "four"], [k]),
        ],
        BY_RANK: [
            helper.make_node("Shape", ["r"], [s]),
            helper.make_node("Size", [s], [g]),
            helper.make_node("Equal", [g, "four"], [k]),
        ],
        BY_VALUE: [
            helper.make_node("ReduceSum", ["r"], [g], keepdims=0),
            helper.make_node("Greater", [g, "ten"], [k]),
        ],
    }[kinds[0]]
    branches = {
        "then_branch": branch(kinds[1:], 2 * factor, depth + 1),
        "else_branch": branch(kinds[1:], 3 * factor, depth + 1),
    }
    return [*makers, helper.make_node("If", [k], [f"chosen{depth}"], **branches)]


def network(kinds: tuple[str, ...], columns: int | str, folder: Path) -> Model:
    """Relu, then an If for each kind, one inside the other."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), *decision(kinds, 1.0, 0)]
    constants = {"last": np.array(-1), "four": np.array(4), "ten": np.array(10, np.float32)}
    graph = helper.make_graph(
        [*nodes, helper.make_node("Neg", ["chosen0"], ["y"])],
        "network",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, columns])],
        [value("y")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return load(path)


def outputs(model: Model, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # onnxruntime 1.31 crashes where it inlines an If whose branches hold one that depends on values
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(serialize(model), options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    return found


def ifs(model: Model) -> int:
    return sum(node.op == "If" for node in model.view.nodes)


KINDS = st.lists(st.sampled_from([BY_SHAPE, BY_VALUE, BY_RANK]), min_size=1, max_size=3).map(tuple)


@settings(max_examples=25, deadline=None)
@given(kinds=KINDS, columns=st.sampled_from([4, 5, "free"]), seed=st.integers(0, 9))
def test_what_is_computed_stays_the_same(
    tmp_path_factory: pytest.TempPathFactory, kinds: tuple[str, ...], columns: int | str, seed: int
) -> None:
    model = network(kinds, columns, tmp_path_factory.mktemp("branches"))
    ready = prepare(model, PrepareOptions())
    x = 3 * np.random.default_rng(seed).standard_normal((2, 4 if columns == "free" else columns), np.float32)
    np.testing.assert_array_equal(outputs(model, x), outputs(ready, x))
    is_open = {BY_VALUE} | ({BY_SHAPE} if columns == "free" else set())
    assert ifs(ready) == (1 if is_open & set(kinds) else 0)


def test_an_if_that_depends_on_values_stays(tmp_path: Path) -> None:
    model = network((BY_VALUE,), 4, tmp_path)
    ready = prepare(model, PrepareOptions())
    assert ifs(ready) == 1
    assert not any("branch that is taken" in note for note in ready.notes)


def test_one_known_dimension_of_a_free_shape_decides(tmp_path: Path) -> None:
    model = network((BY_SHAPE,), 4, tmp_path)
    free = onnx.ModelProto.FromString(serialize(model))
    free.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(free, tmp_path / "free.onnx")
    ready = prepare(load(tmp_path / "free.onnx"), PrepareOptions())
    assert ifs(ready) == 0
    assert "1 If node whose condition is known was replaced by its active branch" in ready.notes


def test_without_folding_of_constants_branches_stay(tmp_path: Path) -> None:
    assert ifs(prepare(network((BY_SHAPE,), 4, tmp_path), PrepareOptions(fold_constants=False))) == 1


def test_what_is_said_of_bodies_is_said_of_those_that_are_left(tmp_path: Path) -> None:
    kinds = {(BY_SHAPE,): 0, (BY_VALUE,): 1, (BY_SHAPE, BY_VALUE): 1, (BY_VALUE, BY_SHAPE): 1}
    for wanted, left in kinds.items():
        ready = prepare(network(wanted, 4, tmp_path), PrepareOptions())
        said = [note for note in ready.notes if "bodies are not changed" in note]
        assert len(said) == bool(left), wanted
        assert sum(node.op_type == "If" for node in ready.proto.graph.node) == left


def test_new_names_are_not_those_inside_a_branch(tmp_path: Path) -> None:
    proto = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Einsum", ["x", "w"], ["e"], name="sum", equation="ij,jk->ki"),
                helper.make_node(
                    "If",
                    ["flag"],
                    ["y"],
                    name="choice",
                    then_branch=helper.make_graph(
                        [
                            helper.make_node("Relu", ["e"], ["sum_product"], name="sum_MatMul"),
                            helper.make_node("Neg", ["sum_product"], ["then_y"]),
                        ],
                        "then",
                        [],
                        [value("then_y")],
                    ),
                    else_branch=helper.make_graph(
                        [helper.make_node("Abs", ["e"], ["else_y"])], "else", [], [value("else_y")]
                    ),
                ),
            ],
            "g",
            [
                helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3]),
                helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4, 2])],
            [numpy_helper.from_array(np.ones((3, 4), np.float32), "w")],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    model = prepare(load(path), PrepareOptions())
    assert "MatMul" in {node.op for node in model.view.nodes}
    onnx.checker.check_model(model.proto, full_check=True)
