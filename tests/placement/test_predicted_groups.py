"""Normalizations of several groups: which kernels state their nodes, as predicted and as built."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.run import predict
from tests.audit.graphs import Quantized
from tests.models import save
from tests.placement.building import between_products

FIVE = frozenset({"apart", "norm", "joined", "gain", "shift"})


def normalized(s: Quantized, x: str, channels: int, groups: int, size: int) -> str:
    """GroupNormalization as exporters write it."""
    ones, zeros = (
        s.constant(name, value(groups, np.float32)) for name, value in (("one", np.ones), ("zero", np.zeros))
    )
    y = s.node("Reshape", [x, s.constant("rows", np.array([1, groups, -1]))], "apart_y", name="apart")
    y = s.node("InstanceNormalization", [y, ones, zeros], "norm_y", name="norm")
    back = s.constant("back", np.array([1, channels, size, size]))
    y = s.node("Reshape", [y, back], "joined_y", name="joined")
    y = s.node("Mul", [y, s.weight("gain_w", channels, 1, 1)], "gain_y", name="gain")
    return s.node("Add", [y, s.weight("shift_w", channels, 1, 1)], "shift_y", name="shift")


def swish(s: Quantized, x: str) -> str:
    return s.node("Mul", [x, s.node("Sigmoid", [x], "gate_y", name="gate")], "swish_y", name="swish")


def network(channels: int, groups: int, size: int, tail: str, front: str = "") -> Quantized:
    """Two convolutions with a normalization, and what `front` and `tail` name, between them."""
    s = Quantized()
    x = s.input("x", [1, 8, size, size])
    y = s.qconv("first", x, channels=(8, channels), kernel=1)
    if front == "Relu":
        y = s.relu("front", y)
    if front == "Add":
        y = s.node("Add", [y, s.input("r", [1, channels, size, size])], "front_y", name="front")
    y = normalized(s, y, channels, groups, size)
    for step in filter(None, tail.split()):
        if step == "swish":
            y = swish(s, y)
        elif step == "excite":
            mean = s.node("ReduceMean", [y], "mean_y", name="mean", axes=[2, 3], keepdims=1)
            share = s.node(
                "Conv", [mean, s.weight("squeeze_w", channels, channels, 1, 1)], "sq_y", name="squeeze"
            )
            y = s.node("Mul", [y, s.node("Sigmoid", [share], "sig_y", name="sig")], "scaled", name="scale")
        elif step == "shortcut":
            other = s.node("Conv", [x, s.weight("other_w", channels, 8, 1, 1)], "other_y", name="other")
            y = s.node("Add", [y, s.qdq("short", other)], "sum_y", name="sum")
        else:
            y = s.node(step, [y], f"{step}_y", name=step)
    s.output(s.qconv("last", y, channels=(channels, 16), kernel=1), [1, 16, size, size])
    return s


CASES = {
    "channels last, Swish": (64, 4, 8, "swish"),
    "channels last, Tanh": (64, 4, 8, "Tanh"),
    "channels last, a shortcut": (64, 4, 8, "shortcut"),
    "channels last, large": (64, 4, 56, "swish"),
    "no kernel for 48 channels": (48, 3, 8, "swish"),
    "no kernel for 48 channels, in front a Relu": (48, 3, 8, "swish", "Relu"),
    "no kernel for 48 channels, a shortcut": (48, 3, 8, "shortcut"),
    "no kernel for 48 large channels": (48, 3, 40, "swish"),
    "4 groups of 32 channels": (32, 4, 8, "swish"),
    "planes": (64, 4, 8, "swish excite"),
    "planes behind a sum": (64, 4, 8, "swish", "Add"),
    "planes of 24336 values": (64, 4, 39, "excite"),
    "planes of 24964 values": (64, 16, 79, "excite"),
    "24 channels": (24, 3, 8, "swish"),
    "24 channels, planes": (24, 3, 8, "excite"),
    "24 large channels": (24, 3, 56, "swish"),
}


@pytest.mark.slow  # an engine for every case
@pytest.mark.parametrize("name", sorted(CASES))
def test_kernels_around_a_normalization_of_groups_are_predicted_as_the_compiler_makes_them(
    tmp_path: Path, name: str
) -> None:
    built, predicted = between_products(network(*CASES[name]).model(), tmp_path)
    assert built <= predicted


@pytest.mark.parametrize("channels", [64, 48])
def test_a_normalization_is_stated_by_its_own_kernel_and_by_that_of_the_swish_behind_it(
    tmp_path: Path, channels: int
) -> None:
    layers = {
        frozenset(layer.nodes)
        for layer in predict(
            load(save(network(channels, channels // 16, 8, "swish").model(), tmp_path))
        ).layers
    }
    assert {FIVE, FIVE | {"gate", "swish", "last_x/Q"}} <= layers


def test_a_mean_behind_a_normalization_is_a_kernel_without_it(tmp_path: Path) -> None:
    proto = network(64, 4, 8, "swish excite").model()
    layers = {frozenset(layer.nodes) for layer in predict(load(save(proto, tmp_path))).layers}
    assert FIVE in layers
    assert frozenset({"gate", "swish", "mean"}) in layers


def test_a_normalization_that_was_foreseen_leaves_no_doubt(tmp_path: Path) -> None:
    proto = network(64, 4, 8, "swish").model()
    assert not predict(load(save(proto, tmp_path))).doubts
