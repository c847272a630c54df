"""Transposes move to where they cancel or where kernels absorb them; the network stays the same otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.core.recipe import PlacementOptions, PrepareOptions, Recipe
from qdqtool.graph.preparation.prepare import prepare
from tests import models
from tests.graph.placing import opened
from tests.placement.building import build

MOVED = PrepareOptions(transposes="move")


def heads(between: str = "Tanh") -> models.Sketch:
    """Queries, keys and values cut from one turned product, as PyTorch writes `permute` and `unbind`."""
    s = models.Sketch()
    x = s.node("MatMul", [s.input("x", (1, 32, 64)), s.weight("w", 64, 192)], "made", name="joined")
    x = s.node(
        "Reshape", [x, s.constant("apart", np.asarray([1, 32, 3, 4, 16]))], "heads", name="take heads apart"
    )
    x = s.node("Transpose", [x], "turned", name="turn", perm=[2, 0, 3, 1, 4])
    q, k, v = (
        s.node("Gather", [x, s.constant(f"{part}_at", np.int64(at))], part, name=f"pick {part}", axis=0)
        for at, part in enumerate("qkv")
    )
    q = s.node(between, [q], "shaped", name="shape")
    scores = s.node("MatMul", [q, s.node("Transpose", [k], "kt", perm=[0, 1, 3, 2])], "scores", name="scores")
    values = s.node("MatMul", [s.node("Softmax", [scores], "soft"), v], "values", name="values")
    s.output(s.node("Neg", [values], "y", name="negate"), (1, 4, 32, 16))
    return s


def unrolled(steps: int = 8) -> onnx.ModelProto:
    """A recurrence over the second axis of a turned tensor."""
    s = models.Sketch()
    x = s.node("MatMul", [s.input("x", (2, steps, 64)), s.weight("w", 64, 64)], "made", name="joined")
    x = s.node("Reshape", [x, s.constant("apart", np.asarray([2, steps, 4, 16]))], "heads")
    x = s.node("Transpose", [x], "turned", perm=[0, 2, 1, 3])
    state = s.constant("start", np.zeros((2, 4, 16), np.float32))
    for step in range(steps):
        part = s.node("Gather", [x, s.constant(f"at{step}", np.int64(step))], f"part{step}", axis=2)
        state = s.node("Tanh", [s.node("Add", [part, state], f"sum{step}")], f"state{step}")
    s.output(s.node("Neg", [state], "y"), (2, 4, 16))
    return s.model()


def test_what_a_slice_or_gather_picks_is_turned_behind_it_and_nothing_else_changes(tmp_path: Path) -> None:
    proto = heads().model()
    proto.graph.node[0].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'joined']")
    before, after = (prepare(opened(proto, tmp_path), options) for options in (PrepareOptions(), MOVED))
    pick = after.view.by_name["pick q"]
    assert after.view.producer(pick.inputs[0]) is after.view.by_name["take heads apart"]
    assert after.view.uses(pick.outputs[0])[0].node.op == "Transpose"
    named = [{node.name for node in model.view.nodes if node.op != "Transpose"} for model in (before, after)]
    assert named[0] == named[1]
    assert [*after.proto.opset_import] == [*before.proto.opset_import]
    assert next(node for node in after.proto.graph.node if node.name == "joined").metadata_props
    assert after.view.info("w").shape == (64, 192)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 32, 64)).astype(np.float32)}
    np.testing.assert_array_equal(models.run(after.proto, feeds)["y"], models.run(proto, feeds)["y"])
    again = prepare(after, MOVED)
    assert [(node.name, *node.inputs) for node in again.view.nodes] == [
        (node.name, *node.inputs) for node in after.view.nodes
    ]


def test_nothing_is_taken_where_onnxruntime_would_write_other_operators(tmp_path: Path) -> None:
    model = opened(heads("HardSwish").model(), tmp_path)
    assert [(node.name, *node.inputs) for node in prepare(model, MOVED).view.nodes] == [
        (node.name, *node.inputs) for node in prepare(model, PrepareOptions()).view.nodes
    ]


def test_plug_ins_and_bodies_keep_a_network_as_it_is(tmp_path: Path) -> None:
    proto = heads().model()
    proto.graph.node[-1].domain = "trt.plugins"
    proto.opset_import.add(domain="trt.plugins", version=1)
    model = prepare(opened(proto, tmp_path), MOVED)
    turned = model.view.by_name["turn"].outputs[0]
    assert {use.node.name for use in model.view.uses(turned)} == {"pick q", "pick k", "pick v"}


@pytest.mark.parametrize(("target", "value"), [("rtx", "cancel"), ("10.13", "keep")])
def test_only_rtx_gets_them_unless_asked(target: str, value: str) -> None:
    recipe = Recipe(place=PlacementOptions(target=target))
    assert recipe.preparing.transposes == value
    assert recipe.preparing_by_name.transposes == "keep"
    assert recipe.model_copy(update={"prepare": MOVED}).preparing.transposes == "move"


def test_an_unrolled_recurrence_loses_its_transpose_and_kernels(tmp_path: Path) -> None:
    model = opened(unrolled(), tmp_path)
    options = (PrepareOptions(), PrepareOptions(transposes="cancel"))
    plain, moved = (build(prepare(model, option).proto) for option in options)
    assert not plain.error
    assert not moved.error
    assert len(moved.kernels) < len(plain.kernels)


def test_transposes_that_become_more_move_only_if_asked(tmp_path: Path) -> None:
    model = opened(heads().model(), tmp_path)
    counts = [
        sum(node.op == "Transpose" for node in prepare(model, PrepareOptions(transposes=way)).view.nodes)
        for way in ("keep", "cancel", "move")
    ]
    assert counts[0] == counts[1] < counts[2]
