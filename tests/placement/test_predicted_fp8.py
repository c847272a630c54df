"""The kernels of FP8 networks are foreseen as TensorRT for RTX builds them for SM89."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qdqtool
from qdqtool.core.engine import EngineLayer
from qdqtool.core.events import End
from qdqtool.core.prediction import Prediction
from qdqtool.core.target import Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.prediction.run import predict
from tests import models
from tests.models import Sketch
from tests.placement.building import build

pytestmark = pytest.mark.slow  # an engine for every case

ADA = Target(sm=("89",))
Make = Callable[[Sketch], str]


def convolved(s: Sketch, name: str, x: str, groups: int = 1) -> str:
    weights = [s.weight(f"{name}_w", 32, 32 // groups, 3, 3), s.weight(f"{name}_b", 32)]
    return s.node("Conv", [x, *weights], f"{name}_y", name=name, pads=[1, 1, 1, 1], group=groups)


def picture(s: Sketch) -> str:
    return convolved(s, "first", s.input("x", [1, 32, 16, 16]))


def behind_relu(s: Sketch) -> str:
    return convolved(s, "last", s.relu("relu", picture(s)))


def residual(s: Sketch) -> str:
    x = s.relu("relu", picture(s))
    y = s.node("Add", [convolved(s, "second", x), x], "sum", name="add")
    return convolved(s, "last", s.relu("relu_2", y))


def swish(s: Sketch) -> str:
    y = picture(s)
    y = s.node("Mul", [y, s.node("Sigmoid", [y], "gate_y", name="gate")], "swish_y", name="swish")
    return convolved(s, "last", y)


def depthwise(s: Sketch) -> str:
    return convolved(
        s, "last", s.relu("relu", convolved(s, "middle", s.relu("relu_1", picture(s)), groups=32))
    )


def pooled(s: Sketch) -> str:
    y = s.node(
        "MaxPool", [s.relu("relu", picture(s))], "pool_y", name="pool", kernel_shape=[2, 2], strides=[2, 2]
    )
    return convolved(s, "last", y)


def channels_last(s: Sketch) -> str:
    y = s.node("Transpose", [s.relu("relu", picture(s))], "turned", name="turn", perm=[0, 2, 3, 1])
    y = s.node(
        "LayerNormalization",
        [y, s.weight("scale", 32), s.weight("shift", 32)],
        "norm_y",
        name="norm",
        axis=-1,
    )
    return convolved(s, "last", s.node("Transpose", [y], "back_y", name="back", perm=[0, 3, 1, 2]))


def dense(s: Sketch, name: str, x: str, inner: int, outer: int, *, bias: bool = True) -> str:
    y = s.node("MatMul", [x, s.weight(f"{name}_w", inner, outer)], f"{name}_y", name=name)
    return s.node("Add", [y, s.weight(f"{name}_b", outer)], f"{name}_z", name=f"{name}_bias") if bias else y


def products(s: Sketch) -> str:
    y = dense(s, "first", s.input("x", [1, 64, 64]), 64, 64, bias=False)
    return dense(s, "last", y, 64, 64)


def attention(s: Sketch, *, keys: int = 64, size: int = 48, values: int = 48) -> str:
    x, context = s.input("x", [1, 64, 64]), s.input("context", [1, keys, 64])
    found = []
    for name, source, rows, wide, order in (
        ("q", x, 64, size, [0, 2, 1, 3]),
        ("k", context, keys, size, [0, 2, 3, 1]),
        ("v", context, keys, values, [0, 2, 1, 3]),
    ):
        y = dense(s, name, source, 64, 2 * wide)
        y = s.node(
            "Reshape",
            [y, s.constant(f"{name}_s", np.array([1, rows, 2, wide]))],
            f"{name}_r",
            name=f"{name}_heads",
        )
        found.append(s.node("Transpose", [y], f"{name}_t", name=f"{name}_turn", perm=order))
    y = s.node("MatMul", found[:2], "scores_y", name="scores")
    y = s.node("Mul", [y, s.constant("factor", np.float32(0.2))], "scaled", name="scale")
    y = s.node("Softmax", [y], "softmax_y", name="softmax", axis=-1)
    y = s.node("MatMul", [y, found[2]], "values_y", name="values")
    y = s.node("Transpose", [y], "turned", name="turn", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, s.constant("merged", np.array([1, 64, 2 * values]))], "merged_y", name="merge")
    return dense(s, "last", y, 2 * values, 64)


CASES: dict[str, Make] = {
    "relu": behind_relu,
    "residual": residual,
    "swish": swish,
    "depthwise": depthwise,
    "pool": pooled,
    "channels last": channels_last,
    "matrix products": products,
    "attention": attention,
    "attention of 32 keys": lambda s: attention(s, keys=32),
    "attention of 16 keys": lambda s: attention(s, keys=16),
    "attention with wide values": lambda s: attention(s, size=32, values=64),
}


@pytest.mark.parametrize(
    ("name", "per_channel"),
    [
        pytest.param(name, per_channel, id=f"{name}, {'scales per channel' if per_channel else 'one scale'}")
        for name in CASES
        for per_channel in (True, False)
        # With one scale the kernel that rearranges channels for it names the activation in front as well.
        if per_channel or name != "depthwise"
    ],
)
def test_kernels_are_foreseen(name: str, per_channel: bool, tmp_path: Path) -> None:
    sketch = Sketch()
    sketch.output(CASES[name](sketch))
    plain = models.save(sketch.model(), tmp_path)
    settings = {"place.per_channel": per_channel, "build.sm": 89, "place.sm": []}
    made = qdqtool.quantize(plain, "random:2", recipe="transformer-fp8", settings=settings)
    told = predict(load(models.save(made.model, tmp_path, "model.qdq.onnx")), ADA)
    built = build(made.model, "sm89")
    assert not built.error
    assert sets_of(built.kernels, told) == foreseen(built.kernels, told)


def silent(told: Prediction) -> set[str]:
    """What leaves no kernel: DQ, and what is done when the engine is built."""
    ready = {End.FOLDED, End.MERGED, End.WEIGHT}
    return {row.node for row in told.ledger if row.kind == "DQ" or row.end in ready}


def sets_of(kernels: tuple[EngineLayer, ...], told: Prediction) -> set[frozenset[str]]:
    """The nodes of every kernel; a product counts for its own kernel, though others scale or pad for it."""
    multiplied = {node.node for node in told.nodes if node.compute}
    found = set()
    for kernel in kernels:
        nodes = set(kernel.onnx_nodes) - silent(told)
        found.add(frozenset(nodes if kernel.kind != "kgen" or "_mha_" in kernel.name else nodes - multiplied))
    return found - {frozenset()}


def foreseen(kernels: tuple[EngineLayer, ...], told: Prediction) -> set[frozenset[str]]:
    """The same as predicted, without nodes that no kernel names."""
    named = frozenset().union(*sets_of(kernels, told))
    return {found for layer in told.layers if (found := (frozenset(layer.nodes) - silent(told)) & named)}
