"""Builds of drawn networks confirm what the rule says about the bytes of depthwise convolutions beside FP16."""

from __future__ import annotations

import random

import onnx
import pytest

from tests import models
from tests.placement.test_rules import place

FORM = ("fp16", "bf16")


def network(seed: int = 0, *, groups: int = 0, outputs: int = 0, rank: int = 4) -> onnx.ModelProto:
    """A drawn network with a depthwise convolution `dw` between two others; `groups` and `outputs` make it another one."""
    chance, s = random.Random(seed), models.Sketch(seed)
    channels, kernel = chance.choice((16, 24, 48)), chance.choice((3, 5, 7))
    size, pads = [1, 3, *[chance.choice((14, 20))] * (rank - 2)], [kernel // 2] * 2 * (rank - 2)
    ones, window = (1,) * (rank - 2), (kernel,) * (rank - 2)
    made = outputs or channels
    x = s.node("Conv", [s.input("x", size), s.weight("first_w", channels, 3, *ones)], "first_y", name="first")
    x = s.relu("relu0", x)
    weight = s.weight("dw_w", made, channels // (groups or channels), *window)
    stride = [chance.choice((1, 2))] * (rank - 2)
    x = s.node("Conv", [x, weight], "dw_y", name="dw", group=groups or channels, pads=pads, strides=stride)
    after = chance.choice(("relu", "swish", "pool", "nothing"))
    if after == "relu":
        x = s.relu("relu1", x)
    if after == "swish":
        x = s.node("Mul", [x, s.node("Sigmoid", [x], "gate", name="gate")], "swish", name="swish")
    if after == "pool":
        x = s.node("MaxPool", [x], "pooled", name="pool", kernel_shape=[2] * (rank - 2))
    s.output(s.node("Conv", [x, s.weight("last_w", 32, made, *ones)], "last_y", name="last"), [None] * rank)
    return s.model()


def refused(proto: onnx.ModelProto, **options: object) -> bool:
    placement = place(proto, **options)
    return any(
        opinion.rule == "depthwise" for decision in placement.decisions for opinion in decision.opinions
    )


@pytest.mark.parametrize("types", FORM)
def test_a_depthwise_convolution_beside_two_bytes_stays_float(types: str) -> None:
    assert refused(network(), float_type=types)
    assert refused(network(rank=3), float_type=types)


@pytest.mark.parametrize(
    ("proto", "options"),
    [
        pytest.param(network(), {}, id="beside FP32"),
        pytest.param(network(), {"float_type": "fp16", "target": "10"}, id="for classic TensorRT"),
        pytest.param(network(), {"float_type": "fp16", "activations": "float"}, id="weights alone"),
        pytest.param(network(groups=8), {"float_type": "fp16"}, id="groups of several channels"),
        pytest.param(network(groups=1), {"float_type": "fp16"}, id="an ordinary convolution"),
        pytest.param(network(2, outputs=96), {"float_type": "fp16"}, id="several outputs per channel"),
        pytest.param(network(rank=5), {"float_type": "fp16"}, id="three dimensions"),
    ],
)
def test_nothing_is_said_of(proto: onnx.ModelProto, options: dict[str, object]) -> None:
    assert not refused(proto, **options)


@pytest.mark.rtx
@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "types", "format_", "target"),
    [(1, "fp16", "int8", "sm86"), (2, "bf16", "int8", "sm120"), (5, "fp16", "fp8", "sm89"), (4, "fp16", "int8", "sm86")],
)  # fmt: skip
def test_it_moves_more_bytes_if_it_is_quantized(seed: int, types: str, format_: str, target: str) -> None:
    from tests.placement.building import build, quantized

    options = {"format": format_, "sm": (target.removeprefix("sm"),)}
    ours, _ = quantized(network(seed, rank=3 + seed % 2), types, **options)
    forced, _ = quantized(network(seed, rank=3 + seed % 2), types, skip_rules=("depthwise",), **options)
    float_, low = build(ours.proto, target), build(forced.proto, target)
    assert (dict(float_.precision)["dw"], dict(low.precision)["dw"]) == ("float", format_)
    assert low.bytes > float_.bytes


@pytest.mark.rtx
@pytest.mark.slow
def test_beside_fp32_it_moves_as_many_bytes_quantized() -> None:
    from tests.placement.building import build, quantized

    low = build(quantized(network(1))[0].proto)
    float_ = build(quantized(network(1), exclude=("dw",))[0].proto)
    assert (dict(low.precision)["dw"], dict(float_.precision)["dw"]) == ("int8", "float")
    assert low.bytes <= float_.bytes
