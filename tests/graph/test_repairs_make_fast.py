"""Pairs move to where TensorRT fuses them, and the meaning stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.graph.qdq.find import find
from tests.graph.repairing import Sketch, apart, kinds, repaired


def test_shared_pairs_become_dedicated_ones(tmp_path: Path) -> None:
    s = Sketch()
    x = s.pair(s.image(), "x")
    left = s.convolved(x, s.filters("v"), name="left")
    right = s.convolved(x, s.filters("u"), name="right")
    s.output(s.node("Concat", [left, right, x], "z", axis=1))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"shared_pair": 2}
    assert all(len(pair.slots) == 1 for pair in find(fixed))
    assert apart(proto, fixed) == 0


def test_a_returned_pair_keeps_its_output_name(tmp_path: Path) -> None:
    s = Sketch()
    x = s.pair(s.image(), "x")
    s.output(x)
    s.output(s.convolved(x, s.filters()))
    proto = s.model()
    fixed, _ = repaired(proto, tmp_path)
    assert [info.name for info in fixed.view.outputs] == ["x_d", "conv_y"]
    assert apart(proto, fixed) == 0


def test_pairs_between_conv_and_activation_go(tmp_path: Path) -> None:
    s = Sketch()
    y = s.pair(s.convolved(s.pair(s.image(), "x"), s.filters()), "inner", 0.05)
    y = s.pair(s.relu("relu", y), "outer", 0.05)
    s.output(s.convolved(y, s.filters("v"), name="conv2"))
    fixed, changes = repaired(s.model(), tmp_path)
    assert [change.subject for change in changes] == ["inner/Q"]
    assert fixed.view.by_name["relu"].inputs == ("conv_y",)


def test_pairs_inside_silu_go(tmp_path: Path) -> None:
    s = Sketch()
    y = s.convolved(s.pair(s.image(), "x"), s.filters())
    gate = s.node("Sigmoid", [s.pair(y, "a", 0.05)], "gate", name="sigmoid")
    y = s.node("Mul", [s.pair(y, "b", 0.05), s.pair(gate, "c", 0.01)], "silu", name="mul")
    s.output(s.convolved(s.pair(y, "out", 0.05), s.filters("v"), name="conv2"))
    fixed, changes = repaired(s.model(), tmp_path)
    assert {change.subject for change in changes} == {"a/Q", "b/Q", "c/Q"}
    assert fixed.view.by_name["mul"].inputs == ("conv_y", "gate")


def test_a_pair_before_a_lone_relu_moves_behind_it(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.relu("relu", s.pair(s.image(), "x")), s.filters()))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"inside_fusion": 1}
    assert {pair.tensor for pair in find(fixed)} == {"w", "relu_y"}
    assert apart(proto, fixed) == 0


@pytest.mark.parametrize(("first", "second", "gone"), [(0.05, 0.02, "a/Q"), (0.02, 0.05, "b/Q")])
def test_of_two_pairs_in_a_row_the_wider_one_goes(
    first: float, second: float, gone: str, tmp_path: Path
) -> None:
    s = Sketch()
    x = s.pair(s.pair(s.image(), "a", first), "b", second)
    s.output(s.convolved(x, s.filters()))
    fixed, changes = repaired(s.model(), tmp_path)
    assert [change.subject for change in changes] == [gone]
    assert [pair.scale[0] for pair in find(fixed)][:1] == [float(np.float32(min(first, second)))]


def test_the_conv_side_of_a_residual_add_loses_its_pair(tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    y = s.convolved(s.pair(x, "x"), s.filters())
    s.output(s.node("Add", [s.pair(x, "shortcut"), s.pair(y, "branch", 0.05)], "z", name="add"))
    fixed, changes = repaired(s.model(), tmp_path)
    assert kinds(changes) == {"residual_add": 1}
    assert fixed.view.by_name["add"].inputs[1] == "conv_y"


def test_a_float_weight_beside_a_quantized_activation_is_quantized(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x"), s.weight("w", 4, 4, 3, 3)))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"half_quantized": 1}
    assert changes[0].error is not None
    assert 0 < changes[0].error < 0.005
    assert find(fixed)[-1].scale_shape == (4,)
    assert apart(proto, fixed) < 0.02


def test_branches_of_concat_and_what_follows_share_the_largest_scale(tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    y = s.node("Concat", [s.pair(x, "a", 0.01), s.pair(x, "b", 0.03)], "cat", name="cat", axis=1)
    y = s.node("MaxPool", [s.pair(y, "c", 0.02)], "pool", name="pool", kernel_shape=[2, 2])
    weight = s.dequantize(s.integers("w", 4, 8, 1, 1), "w", np.full(4, 0.01), axis=0)
    s.output(s.node("Conv", [s.pair(y, "d", 0.05), weight], "y", name="conv"))
    fixed, changes = repaired(s.model(), tmp_path)
    assert len(changes) == 1
    scales = {pair.scale[0] for pair in find(fixed) if pair.quantize}
    assert scales == {float(np.float32(0.05))}


@pytest.mark.parametrize(
    "steps",
    [(0.05, 0.03, 0.02), (0.02, 0.03, 0.05), (0.03, 0.02, 0.05), (0.03, 0.05, 0.02)],
    ids=["narrower", "wider", "narrow in the middle", "wide in the middle"],
)
def test_of_three_pairs_in_a_row_the_narrowest_stays(steps: tuple[float, ...], tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    for name, step in zip("abc", steps, strict=True):
        x = s.pair(x, name, step)
    s.output(s.convolved(x, s.filters()))
    fixed, changes = repaired(s.model(), tmp_path)
    assert kinds(changes) == {"requantized": 2}
    first = find(fixed)[0]
    assert (first.tensor, first.scale) == ("x", (float(np.float32(min(steps))),))


@pytest.mark.parametrize("place", [0, 1])
def test_the_pair_of_probabilities_goes_to_the_input_that_reads_them(place: int, tmp_path: Path) -> None:
    s = Sketch()
    inputs = {name: s.pair(s.input(name, [2, 16, 16]), name) for name in "qkv"}
    scores = s.node("MatMul", [inputs["q"], inputs["k"]], "scores", name="qk")
    y = s.node("Softmax", [scores], "p", axis=-1)
    turned = s.node("Transpose", [y], "turned", perm=[0, 2, 1]) if place else y
    factors = [turned, inputs["v"]]
    s.output(s.node("MatMul", factors[::-1] if place else factors, "y", name="pv"))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes)["attention"] == 1
    pair = next(pair for pair in find(fixed) if pair.tensor == factors[0])
    assert (pair.slots[0].node, pair.slots[0].index) == ("pv", place)
    assert apart(proto, fixed) < 0.05
