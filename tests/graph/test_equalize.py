"""Channels scaled by constants on both sides of a tensor: the network computes the same, and ranges come out even."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.weights import WeightChanges
from qdqtool.graph.equalize import behind, cross_layer, migration, protection, scalables, scale_tensors
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.qdq.changes import with_changes
from qdqtool.graph.view import Model
from tests import models

BETWEEN = ("Relu", "LeakyRelu", "PRelu", "MaxPool", "AveragePool", "Sigmoid", "Clip", "none")


def pictures(kinds: list[str], depthwise: list[bool], seed: int) -> onnx.ModelProto:
    """A chain of convolutions with activations or pools between them, channels of very different size."""
    s = models.Sketch(seed)
    y = s.input("x", ["N", 4, 9, 9])
    for number, (kind, grouped) in enumerate(zip(kinds, depthwise, strict=True)):
        y = s.conv(f"conv{number}", y, (4, 4), group=4 if grouped else 1)
        attributes = {"kernel_shape": [3, 3], "pads": [1] * 4} if "Pool" in kind else {}
        inputs = [y]
        if kind == "PRelu":
            inputs.append(s.weight(f"slope{number}", 4, 1, 1))
        if kind == "Clip":
            inputs += [s.constant(f"low{number}", np.float32(0)), s.constant(f"high{number}", np.float32(1))]
        if kind != "none":
            y = s.node(kind, inputs, f"y{number}", name=f"between{number}", **attributes)
    s.output(s.conv("last", y, (4, 4)), ["N", 4, 9, 9])
    return s.model()


def matrices(norm: str, activation: str, several: bool, seed: int) -> onnx.ModelProto:
    """A normalization, one or three linear layers behind it, an activation and another layer."""
    s = models.Sketch(seed)
    x = s.input("x", ["N", 5, 8])
    gamma, beta = s.weight("gamma", 8), s.weight("beta", 8)
    if norm == "LayerNormalization":
        y = s.node(norm, [x, gamma, beta], "n", name="norm", axis=-1)
    elif norm == "parts":
        y = s.node("Add", [s.node("Mul", [x, gamma], "g", name="times"), beta], "n", name="plus")
    else:
        y = s.node("Tanh", [x], "n", name="norm")
    parts = [
        s.node("MatMul", [y, s.weight(f"w{k}", 8, 8)], f"h{k}", name=f"fc{k}") for k in range(1 + 2 * several)
    ]
    for number, part in enumerate(parts[1:]):
        parts[0] = s.node("Add", [parts[0], part], f"sum{number}", name=f"sum{number}")
    y = s.node("Add", [s.weight("bias", 8), parts[0]], "b", name="bias_add")
    y = y if activation == "none" else s.node(activation, [y], "a", name="act")
    s.output(s.node("MatMul", [y, s.weight("w_last", 8, 8)], "out", name="last"), ["N", 5, 8])
    return s.model()


def opened(proto: onnx.ModelProto) -> Model:
    with TemporaryDirectory() as folder:
        return load(models.save(proto, Path(folder)))


def assert_same(model: Model, changes: WeightChanges, seed: int) -> None:
    """Outputs of both models agree within 1e-5 of the largest value."""
    changed = with_changes(model, changes)
    (entry,) = model.view.inputs
    shape = [dim if isinstance(dim, int) else 2 for dim in entry.shape or ()]
    feeds = {entry.name: np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}
    one, two = (
        models.run(onnx.ModelProto.FromString(serialize(each)), feeds, optimize=False)
        for each in (model, changed)
    )
    for name, value in one.items():
        np.testing.assert_allclose(
            two[name], value, rtol=0, atol=1e-5 * max(1e-3, float(np.abs(value).max()))
        )


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(BETWEEN), min_size=1, max_size=4),
    depthwise=st.lists(st.booleans(), min_size=4, max_size=4),
    seed=st.integers(0, 1 << 16),
)
def test_layers_of_pictures_are_equalized_without_changing_the_outputs(
    kinds: list[str], depthwise: list[bool], seed: int
) -> None:
    model = opened(pictures(kinds, depthwise[: len(kinds)], seed))
    assert_same(model, cross_layer(model.view, scalables(model.view)), seed)


@settings(max_examples=60, deadline=None)
@given(
    norm=st.sampled_from(["LayerNormalization", "parts", "none"]),
    activation=st.sampled_from(["Relu", "LeakyRelu", "Softplus", "none"]),
    several=st.booleans(),
    seed=st.integers(0, 1 << 16),
)
def test_any_positive_factors_leave_the_outputs_of_matrices_as_they_are(
    norm: str, activation: str, several: bool, seed: int
) -> None:
    model = opened(matrices(norm, activation, several, seed))
    rng = np.random.default_rng(seed)
    found = scalables(model.view)
    assert {one.tensor for one in found} >= {"n"}
    factors = {one: np.exp2(rng.uniform(-4, 4, one.channels)) for one in found}
    assert_same(model, scale_tensors(model.view, factors), seed)


def test_ranges_of_channels_are_the_same_on_both_sides(tmp_path: Path) -> None:
    model = opened(pictures(["Relu", "LeakyRelu", "MaxPool"], [False, True, False], 3))
    found = [one for one in scalables(model.view) if one.weight]
    assert len(found) == 3
    changed = with_changes(model, cross_layer(model.view, found))
    for one in found:
        weight = changed.view.constant(one.weight)
        assert weight is not None
        front = np.abs(weight).max(axis=(1, 2, 3))
        np.testing.assert_allclose(front, behind(changed.view, one), rtol=0.02)


@pytest.mark.parametrize("kind", ["Sigmoid", "Clip"])
def test_what_is_not_homogeneous_is_not_passed(kind: str) -> None:
    view = opened(pictures([kind], [False], 0)).view
    assert [one.tensor for one in scalables(view) if one.divided] == []


def test_a_tensor_that_is_an_output_or_has_another_reader_is_left_alone() -> None:
    s = models.Sketch()
    x = s.input("x", ["N", 4, 9, 9])
    y = s.node("Relu", [s.conv("one", x, (4, 4))], "r", name="relu")
    s.output(s.conv("two", y, (4, 4)), ["N", 4, 9, 9])
    s.output(s.node("Sigmoid", [y], "side", name="side"), ["N", 4, 9, 9])
    assert scalables(opened(s.model()).view) == ()


def test_factors_of_channels_that_never_fire_are_one() -> None:
    silent = np.array([0.0, 2.0, 8.0])
    assert migration(silent, np.ones(3), 0.5)[0] == 1
    assert protection(silent, 0.5)[0] == 1
    assert migration(silent, np.ones(3), 0.5)[2] > migration(silent, np.ones(3), 0.5)[1]
