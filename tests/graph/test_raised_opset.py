"""A model of an older opset computes the same after loading, where onnx's version converter alone would change or refuse it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.graph.canonical.opset import raise_opset
from qdqtool.graph.onnx_io.load import load
from tests import models

UP, DOWN, MIXED = (1.0, 1.0, 2.0, 1.5), (1.0, 1.0, 0.5, 0.75), (1.0, 1.0, 0.6, 1.75)


def resize(op: str, mode: str, scales: tuple[float, ...], *, in_body: bool) -> onnx.ModelProto:
    """A Resize or Upsample as opsets before 11 wrote it, with its scales as a constant, behind a Relu or in a branch."""
    s = models.Sketch()
    x = s.node("Relu", [s.input("x", [1, 2, 7, 10])], "relu")
    inputs = [x, s.constant("scales", np.array(scales, np.float32))]
    if in_body:
        branch, other = (
            helper.make_graph(
                [
                    helper.make_node(op, inputs, [f"{name}_resized"], mode=mode),
                    helper.make_node(last, [f"{name}_resized"], [f"{name}_y"]),
                ],
                name,
                [],
                [helper.make_tensor_value_info(f"{name}_y", 1, None)],
            )
            for name, last in (("then", "Sqrt"), ("else", "Neg"))
        )
        same = s.node("Equal", [s.node("Size", [x], "n"), s.constant("all", np.int64(140))], "is")
        y = s.node("If", [same], "y", then_branch=branch, else_branch=other)
    else:
        y = s.node(op, inputs, "y", mode=mode)
    s.output(y, ["a", "b", "h", "w"])
    proto = s.model(opset=9 if op == "Upsample" else 10)
    proto.ir_version = 5
    return proto


@pytest.mark.parametrize("in_body", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("op", "scales"), [("Upsample", UP), ("Resize", UP), ("Resize", DOWN), ("Resize", MIXED)]
)
def test_pixels_of_an_old_resize_stay_where_they_were(
    op: str, scales: tuple[float, ...], mode: str, in_body: bool, tmp_path: Path
) -> None:
    path = models.save(resize(op, mode, scales, in_body=in_body), tmp_path)
    feeds = {"x": np.random.default_rng(0).random((1, 2, 7, 10)).astype(np.float32)}
    (before,) = models.run(onnx.load(path), feeds).values()
    (after,) = models.run(load(path).proto, feeds).values()
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", ["Hardmax", "LogSoftmax", "Softmax"])
def test_a_softmax_that_a_branch_reads_is_converted(op: str, tmp_path: Path) -> None:
    """The converter ended at it: `from->owningGraph() == graph_ failed`."""
    s = models.Sketch()
    x = s.node(op, [s.input("x", [2, 3, 4])], "scores", axis=1)
    bodies = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(inner, [x], [f"{name}_y"])],
            name,
            [],
            [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
        )
        for name, inner in (("then", "Neg"), ("else", "Exp"))
    }
    largest = s.node("ReduceMax", [x], "largest", keepdims=0)
    is_high = s.node("Greater", [largest, s.constant("half", np.float32(0.5))], "is")
    s.output(s.node("If", [is_high], "y", **bodies), [2, 3, 4])
    s.output(x, [2, 3, 4])
    proto = s.model(opset=11)
    proto.ir_version = 6
    path = models.save(proto, tmp_path)
    model = load(path)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)}
    before, after = models.run(onnx.load(path), feeds), models.run(model.proto, feeds)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-6)
    assert not any(node.op == "Identity" for node in model.view.nodes)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    ("op", "opset", "attributes"),
    [
        ("Hardmax", 11, {"axis": 1}),
        ("Softmax", 11, {"axis": 1}),
        ("LogSoftmax", 11, {"axis": 2}),
        ("ReduceMean", 12, {"axes": [1]}),
        ("Resize", 10, {"mode": "nearest"}),
        ("GroupNormalization", 18, {"num_groups": 2, "epsilon": 0.01}),
    ],
)
def test_operators_in_nested_bodies_keep_their_meaning_beside_others_outside(
    op: str, opset: int, attributes: dict[str, int | str], depth: int, tmp_path: Path
) -> None:
    inputs = {"Resize": ["x", "scales"], "GroupNormalization": ["x", "pair", "pair"]}.get(op, ["x"])

    def graph(level: int, word: str) -> onnx.GraphProto:
        """The operator alone at level 0; else an If, whose branches are of the level below, plus the operator."""
        stem = f"{word}{level}"
        nodes = [helper.make_node(op, inputs, [f"{stem}_own"], name=f"{stem}_own", **attributes)]
        if level:
            branches = {f"{side}_branch": graph(level - 1, f"{stem}{side}") for side in ("then", "else")}
            nodes.append(helper.make_node("If", ["flag"], [f"{stem}_if"], name=f"{stem}_if", **branches))
            nodes.append(helper.make_node("Add", [f"{stem}_own", f"{stem}_if"], [f"{stem}_y"]))
        result = helper.make_tensor_value_info(f"{stem}_{'y' if level else 'own'}", TensorProto.FLOAT, None)
        return helper.make_graph(nodes, stem, [], [result])

    whole = graph(depth, "g")
    whole.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4]))
    whole.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    scales = np.array(MIXED, np.float32)
    whole.initializer.append(onnx.numpy_helper.from_array(scales, "scales"))
    whole.initializer.append(onnx.numpy_helper.from_array(np.array([2, 0.5], np.float32), "pair"))
    proto = helper.make_model(whole, opset_imports=[helper.make_opsetid("", opset)], ir_version=5)
    feeds = {
        "x": np.random.default_rng(0).random((1, 2, 4, 4)).astype(np.float32),
        "flag": np.array(True),
    }
    (before,) = models.run(proto, feeds).values()
    model = load(models.save(proto, tmp_path))
    for raised in (model.proto, raise_opset(model.proto, 19, model.path)[0]):
        onnx.checker.check_model(raised, full_check=True)
        (after,) = models.run(raised, feeds).values()
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("opset", [18, 20])
def test_a_group_norm_with_a_scale_per_group_is_read_at_any_size(opset: int, tmp_path: Path) -> None:
    """onnx's checker refuses the operator of these opsets, onnxruntime and TensorRT do not."""
    random = np.random.default_rng(1)
    scale, bias = (onnx.numpy_helper.from_array(random.random(3).astype(np.float32), n) for n in "sb")
    graph = helper.make_graph(
        [helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], name="norm", num_groups=3)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6, "h", "w"])],
        [scale, bias],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    model = load(models.save(proto, tmp_path))
    for shape in ((1, 6, 4, 4), (2, 6, 3, 5)):
        feeds = {"x": random.random(shape).astype(np.float32)}
        (before,), (after,) = (models.run(each, feeds).values() for each in (proto, model.proto))
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
    assert any("InstanceNormalization" in note for note in model.notes)
