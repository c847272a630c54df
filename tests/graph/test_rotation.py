"""Rotations of residual streams: the float network computes the same, or nothing changes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import pytest

from qdqtool.graph.qdq.changes import with_changes
from qdqtool.graph.rotation import hadamard, rotate_streams
from qdqtool.graph.sparse import sparsify
from qdqtool.runtime.runner import open_model
from tests.graph.test_equalize import opened
from tests.models import Sketch

INT64 = onnx.TensorProto.INT64
NORMS = ("div", "reciprocal", "op")
WIDTHS = (16, 24, 48, 64)


def norm(s: Sketch, form: str, name: str, x: str, width: int) -> str:
    gain = s.constant(
        f"{name}_gain", np.random.default_rng(len(name)).uniform(0.5, 2, width).astype(np.float32)
    )
    if form == "op":
        return s.node("RMSNormalization", [x, gain], f"{name}_y", name=name, axis=-1, epsilon=1e-6)
    two = s.constant(f"{name}_two", np.float32(2))
    square = s.node("Pow", [x, two], f"{name}_sq", name=f"{name}_sq")
    axes = s.constant(f"{name}_axes", np.array([-1], np.int64))
    mean = s.node("ReduceMean", [square, axes], f"{name}_mean", name=f"{name}_mean", keepdims=1)
    small = s.node(
        "Add", [mean, s.constant(f"{name}_eps", np.float32(1e-6))], f"{name}_add", name=f"{name}_add"
    )
    root = s.node("Sqrt", [small], f"{name}_root", name=f"{name}_root")
    if form == "div":
        unit = s.node("Div", [x, root], f"{name}_unit", name=f"{name}_unit")
    else:
        inverse = s.node("Reciprocal", [root], f"{name}_inv", name=f"{name}_inv")
        unit = s.node("Mul", [x, inverse], f"{name}_unit", name=f"{name}_unit")
    return s.node("Mul", [gain, unit], f"{name}_y", name=name)


def transformer(
    form: str, width: int, *, layers: int = 2, bias: bool = False, spoiled: str = "", outlier: float = 1.0
) -> onnx.ModelProto:
    """Embedding, blocks of gated products around RMS norms, and a head; one channel of the stream may be large."""
    s = Sketch(layers + width)
    ids = s.input("ids", [1, 6], INT64)
    table = np.random.default_rng(width).standard_normal((32, width)).astype(np.float32)
    table[:, 3] *= outlier
    x = s.node("Gather", [s.constant("table", table), ids], "emb", name="emb")
    for layer in range(layers):
        p = f"l{layer}"
        y = norm(s, form, f"{p}_norm", x, width)
        if bias:  # exporters ask for shapes
            s.output(s.node("Shape", [x if layer else y], f"{p}_shape", name=f"{p}_shape"), [3], INT64)
        if spoiled == "mean":
            y = s.node("Add", [y, x], f"{p}_leak", name=f"{p}_leak")
        gate = s.node("MatMul", [y, s.weight(f"{p}_wg", width, 40)], f"{p}_g", name=f"{p}_g")
        up = s.node("MatMul", [y, s.weight(f"{p}_wu", width, 40)], f"{p}_u", name=f"{p}_u")
        both = s.node(
            "Mul", [s.node("Sigmoid", [gate], f"{p}_s", name=f"{p}_s"), up], f"{p}_m", name=f"{p}_m"
        )
        down = s.node("MatMul", [both, s.weight(f"{p}_wd", 40, width)], f"{p}_d", name=f"{p}_d")
        if bias:
            down = s.node("Add", [down, s.weight(f"{p}_b", width)], f"{p}_db", name=f"{p}_db")
        if spoiled == "relu":
            down = s.relu(f"{p}_relu", down)
        x = s.node("Add", [x, down], f"{p}_sum", name=f"{p}_sum")
    if spoiled in {"sum", "l0_norm_y", "l0_norm_unit", "l0_norm_sq"}:
        s.output(x if spoiled == "sum" else spoiled, [1, 6, width])
    y = norm(s, form, "last", x, width)
    s.output(s.node("MatMul", [y, s.weight("head", width, 20)], "logits", name="head"), [1, 6, 20])
    return s.model(23 if form == "op" else 18)


def outputs(model: object) -> np.ndarray:
    feeds = {"ids": np.arange(6, dtype=np.int64)[None]}
    return open_model(model, description="m").run(feeds)["logits"]  # type: ignore[arg-type]


@pytest.mark.parametrize(("form", "width"), [*itertools.product(NORMS, WIDTHS)])
def test_a_rotated_network_computes_the_same(form: str, width: int) -> None:
    model = opened(transformer(form, width, bias=width == 24, outlier=50.0))
    changes = rotate_streams(model.view)
    assert {"table", "head", "l0_wd", "l1_wg"} <= changes.values.keys()
    before, after = outputs(model), outputs(with_changes(model, changes))
    assert np.abs(after - before).max() <= 1e-5 * np.abs(before).max()


def test_outlier_channels_spread() -> None:
    model = opened(transformer("div", 64, outlier=50.0))
    reach = [
        np.abs(table).max() / np.median(np.abs(table).max(axis=0))
        for table in (model.view.constant("table"), rotate_streams(model.view).values["table"])
    ]
    assert reach[0] > 20
    assert reach[1] < 3


@pytest.mark.parametrize("spoiled", ["relu", "mean", "sum", "l0_norm_y", "l0_norm_unit", "l0_norm_sq"])
def test_a_stream_that_a_rotation_would_change_is_left_alone(spoiled: str) -> None:
    assert not rotate_streams(opened(transformer("div", 16, spoiled=spoiled)).view)


@pytest.mark.parametrize(("shape", "is_rotated"), [((1, 1, 16), True), ((6, 16), False), ((1, 6, 16), False)])
def test_a_stream_with_a_gain_per_token_is_left_alone(shape: tuple[int, ...], is_rotated: bool) -> None:
    proto = transformer("div", 16)
    gain = next(tensor for tensor in proto.graph.initializer if tensor.name == "l0_norm_gain")
    gain.CopyFrom(onnx.numpy_helper.from_array(np.ones(shape, np.float32), gain.name))
    assert bool(rotate_streams(opened(proto).view)) is is_rotated


def test_sparse_weights_are_not_rotated() -> None:
    assert not rotate_streams(sparsify(opened(transformer("div", 16)))[0].view)


@pytest.mark.parametrize("channels", [1, 2, 12, 24, 64, 96, 100])
def test_matrices_are_orthogonal(channels: int) -> None:
    matrix = hadamard(channels)
    assert np.allclose(matrix @ matrix.T, np.eye(channels), atol=1e-12)
