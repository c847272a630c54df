"""Attentions that TensorRT for RTX builds as one kernel without being INT8 as a whole, and what the patterns say of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtool.core.advice import settings_in
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.matching.attention import (
    attentions,
    fp8_obstacle,
    has_one_query,
    int8_obstacle,
    is_fused_as_float,
)
from qdqtool.placement.decide import decide
from tests.audit.graphs import Quantized
from tests.models import save
from tests.placement.building import build, quantized

HEADS, SIZE, WIDTH = 4, 16, 64


def joined(
    s: Quantized, y: str, rows: int, width: int = WIDTH, *, order: tuple[int, ...] = (0, 2, 1, 3)
) -> str:
    y = s.node("Transpose", [y], "back_y", name="back", perm=list(order))
    return s.node("Reshape", [y, s.constant("merge", np.array([1, rows, width]))], "merge_y", name="merge")


def one_query(tokens: int = 33, heads: int = HEADS, *, in_float: bool = False) -> Quantized:
    """Attention of a class token: every projection is quantized if not `in_float`, the two products are not."""
    s, pairs, width = Quantized(), not in_float, heads * SIZE
    whole, first = s.input("x", [1, tokens, width]), s.input("token", [1, 1, width])

    def projected(x: str, name: str, rows: int, order: list[int]) -> str:
        y = s.qmatmul(f"{name}_product", x, shape=(width, width), act=pairs, weight=pairs)
        y = s.node("Add", [y, s.weight(f"{name}_b", width)], f"{name}_biased", name=f"{name}_bias")
        shape = s.constant(f"{name}_shape", np.array([1, rows, heads, SIZE]))
        y = s.node("Reshape", [y, shape], f"{name}_heads_y", name=f"{name}_heads")
        return s.node("Transpose", [y], f"{name}_turned", name=f"{name}_turn", perm=order)

    q, k = projected(first, "q", 1, [0, 2, 1, 3]), projected(whole, "k", tokens, [0, 2, 3, 1])
    y = s.node("MatMul", [q, k], "scores_y", name="scores")
    y = s.node("Mul", [y, s.constant("quarter", np.float32(0.25))], "scaled", name="factor")
    y = s.node("Softmax", [y], "probs", name="softmax", axis=-1)
    y = s.node("MatMul", [y, projected(whole, "v", tokens, [0, 2, 1, 3])], "values_y", name="values")
    y = joined(s, y, 1, width)
    s.output(s.qmatmul("last", y, shape=(width, 32), act=pairs, weight=pairs), [1, 1, 32])
    return s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("format_", "heads", "tokens"), [("int8", 1, 64), ("int8", 2, 33), ("int8", 3, 64), ("fp8", 3, 64)]
)
def test_one_query_is_placed_in_the_cheaper_form(format_: str, heads: int, tokens: int) -> None:
    """Cost: kernels times bytes, as `fix` weighs engines. The other form has both MatMul nodes float, or quantized."""
    pytest.importorskip("tensorrt_rtx")
    proto, options = one_query(tokens, heads, in_float=True).model(), {"format": format_, "sm": ("89",)}
    placed, placement = quantized(proto, "fp16", **options)
    pair = ("scores", "values")
    is_low = any(decision.slot.node in pair for decision in placement.quantized)
    switched = {"exclude": pair} if is_low else {"skip_rules": ("attention",)}
    ours, theirs = (
        build(model.proto, "sm89") for model in (placed, quantized(proto, "fp16", **options, **switched)[0])
    )
    assert not ours.error + theirs.error
    assert len(ours.kernels) * ours.bytes <= len(theirs.kernels) * theirs.bytes


def halves(*, between_channels: bool) -> Quantized:
    """A float attention in FP16, between tokens or between channels."""
    s, rows = Quantized(), 64
    shape = [1, HEADS, SIZE, rows] if between_channels else [1, HEADS, rows, SIZE]
    q, k, v = (
        s.node("Exp", [s.input(name, shape, TensorProto.FLOAT16)], f"{name}_exp", name=f"{name}_e")
        for name in "qkv"
    )
    k = s.node("Transpose", [k], "k_t", name="k_turn", perm=[0, 1, 3, 2])
    y = s.node(
        "Softmax", [s.node("MatMul", [q, k], "scores_y", name="scores")], "probs", name="softmax", axis=-1
    )
    y = s.node("MatMul", [y, v], "values_y", name="values")
    y = joined(s, y, rows, order=(0, 3, 1, 2) if between_channels else (0, 2, 1, 3))
    weight = s.constant("w", s.random.normal(size=(WIDTH, 32)).astype(np.float16))
    y = s.node("MatMul", [y, weight], "last_y", name="last")
    s.output(y, [1, rows, 32], TensorProto.FLOAT16)
    return s


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sketch", "inside"),
    [
        pytest.param(
            one_query(),
            {"scores", "factor", "softmax", "values", "back", "merge", "last_x/Q"}
            | {f"{name}_{part}" for name in "qkv" for part in ("bias", "heads", "turn")},
            id="one query",
        ),
        pytest.param(halves(between_channels=False), {"scores", "softmax", "values"}, id="FP16"),
        pytest.param(
            halves(between_channels=True), {"scores", "softmax", "values"}, id="FP16 between channels"
        ),
    ],
)
def test_an_attention_is_one_kernel_with(sketch: Quantized, inside: set[str]) -> None:
    pytest.importorskip("tensorrt_rtx")
    kernel = next(kernel for kernel in build(sketch.model()).kernels if "_mha_" in kernel.name)
    elsewhere = {f"{name}_product{part}" for name in "qkv" for part in ("", "_w/Q", "_w/DQ", "_x/DQ")}
    moved = {"back", "merge"}  # no work of their own, so that no kernel states them
    assert set(kernel.onnx_nodes) - elsewhere == inside - moved


def test_an_attention_between_channels_has_no_fused_int8_kernel(tmp_path: Path) -> None:
    for between_channels in (True, False):
        view = load(save(halves(between_channels=between_channels).model(), tmp_path)).view
        scores, values = next(iter(attentions(view)))
        obstacle = int8_obstacle(view, scores, values, Target())
        assert ("transposed along the last axis" in obstacle) is between_channels


def of_sizes(size: int, made: int, rows: int) -> onnx.ModelProto:
    """A float attention in FP16 with heads of `size` whose values have another size."""
    s, tokens = Quantized(), 64
    q, k, v = (
        s.node(
            "Exp", [s.input(name, [1, HEADS, *shape], TensorProto.FLOAT16)], f"{name}_exp", name=f"{name}_e"
        )
        for name, shape in (("q", (rows, size)), ("k", (size, tokens)), ("v", (tokens, made)))
    )
    scores = s.node("MatMul", [q, k], "scores_y", name="scores")
    probs = s.node("Softmax", [scores], "probs", name="softmax", axis=-1)
    y = s.node("MatMul", [probs, v], "values_y", name="values")
    s.output(s.node("Exp", [y], "y", name="last"), [1, HEADS, rows, made], TensorProto.FLOAT16)
    return s.model()


SIZES = [
    (size, made, rows) for size, made in ((16, 16), (16, 32), (64, 32), (32, 64)) for rows in (1, 48, 64)
]


@pytest.mark.parametrize(("size", "made", "rows"), SIZES)
def test_values_of_another_size_than_queries_have_no_attention_in_one_kernel(
    size: int, made: int, rows: int, tmp_path: Path
) -> None:
    model = load(save(of_sizes(size, made, rows), tmp_path))
    pair = next(iter(attentions(model.view)))
    assert is_fused_as_float(model.view, *pair, Target(), "fp16") is (size == made)
    assert has_one_query(model.view, *pair) is (size == made and rows == 1)
    assert ("only equal sizes are fused" in int8_obstacle(model.view, *pair, Target())) is (size != made)
    assert ("only equal sizes are fused" in fp8_obstacle(model.view, *pair)) is (size != made)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "made", "rows"), SIZES)
def test_the_builder_has_no_such_kernel_either(size: int, made: int, rows: int) -> None:
    pytest.importorskip("tensorrt_rtx")
    names = [kernel.name for kernel in build(of_sizes(size, made, rows)).kernels]
    assert any("_mha_" in name for name in names) is (size == made), names


def between_pixels(heads: int, size: int = 32, side: int = 8) -> onnx.ModelProto:
    """Attention between the pixels of a picture, with a convolution before and behind."""
    s, width = Quantized(), heads * size
    y = s.node(
        "Conv", [s.input("x", [1, 64, side, side]), s.weight("w", 3 * width, 64, 1, 1)], "qkv", name="first"
    )
    y = s.node(
        "Reshape",
        [y, s.constant("heads", np.array([1, heads, 3 * size, side**2]))],
        "heads_y",
        name="to_heads",
    )
    y = s.node("Transpose", [y], "pixels", name="turn", perm=[0, 1, 3, 2])
    sizes = s.constant("sizes", np.array([size] * 3))
    s.nodes.append(helper.make_node("Split", [y, sizes], ["q", "k", "v"], name="split", axis=3))
    k = s.node("Transpose", ["k"], "k_turned", name="k_turn", perm=[0, 1, 3, 2])
    y = s.node(
        "Softmax", [s.node("MatMul", ["q", k], "scores_y", name="scores")], "p", name="softmax", axis=-1
    )
    y = s.node("MatMul", [y, "v"], "values_y", name="values")
    y = s.node("Transpose", [y], "back_y", name="back", perm=[0, 1, 3, 2])
    y = s.node(
        "Reshape",
        [y, s.constant("picture", np.array([1, width, side, side]))],
        "picture_y",
        name="to_picture",
    )
    s.output(s.node("Conv", [y, s.weight("v_w", 64, width, 1, 1)], "z", name="last"), [1, 64, side, side])
    return s.model()


@pytest.mark.parametrize("heads", [1, 2])
def test_an_attention_between_pixels_is_one_int8_kernel_with_several_heads(heads: int) -> None:
    model, _ = quantized(between_pixels(heads))
    built = build(model.proto)
    assert any("_mha" in kernel.name for kernel in built.kernels) is (heads > 1)


def test_the_fix_for_one_query_is_a_setting_and_never_nothing(tmp_path: Path) -> None:
    """A decoder with a cache multiplies INT8 in the kernel of one query, so "nothing to do" is not known to be true."""
    proto = of_sizes(16, 16, 1)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    placement = decide(load(save(proto, tmp_path)).view, PlacementOptions())
    fixes = {
        opinion.fix
        for decision in placement.decisions
        for opinion in decision.opinions
        if opinion.rule == "attention"
    }
    assert [settings_in(fix) for fix in fixes] == [("place.skip_rules=[attention]",)]


def guarded(*, by_where: bool, tokens: int = 64) -> onnx.ModelProto:
    """An attention with a mask, with or without the Where against NaN that PyTorch writes, and a layer that reads it."""
    s = Quantized()
    shapes = {"q": (tokens, SIZE), "k": (SIZE, tokens), "v": (tokens, SIZE)}
    q, k, v = (s.node("Exp", [s.input(name, [1, HEADS, *shapes[name]])], f"{name}_exp") for name in "qkv")
    scores = s.node("MatMul", [q, k], "scores_y", name="scores")
    scores = s.node("Add", [scores, s.input("mask", [1, 1, tokens, tokens])], "masked", name="masking")
    y = s.node("Softmax", [scores], "probs", name="softmax", axis=-1)
    if by_where:
        is_nan = s.node("IsNaN", [y], "is_nan", name="question")
        y = s.node("Where", [is_nan, s.constant("nothing", np.float32(0)), y], "clean", name="guard")
    y = joined(s, s.node("MatMul", [y, v], "values_y", name="values"), tokens)
    s.output(s.node("MatMul", [y, s.weight("w", WIDTH, 32)], "z", name="last"), [1, tokens, 32])
    return s.model()


@pytest.mark.parametrize("by_where", [False, True])
def test_a_guard_against_nan_keeps_an_attention_from_being_one_kernel_in_low_bits(
    tmp_path: Path, *, by_where: bool
) -> None:
    view = load(save(guarded(by_where=by_where), tmp_path)).view
    pair = next(iter(attentions(view)))
    assert ("replaces NaN" in int8_obstacle(view, *pair, Target())) is by_where
    assert ("replaces NaN" in fp8_obstacle(view, *pair)) is by_where
    assert is_fused_as_float(view, *pair, Target(), "fp16")


@pytest.mark.slow
@pytest.mark.parametrize("by_where", [False, True])
def test_the_builder_fuses_no_guarded_attention_in_int8_but_in_fp16(*, by_where: bool) -> None:
    pytest.importorskip("tensorrt_rtx")
    model, _ = quantized(guarded(by_where=by_where))
    assert any("_mha" in kernel.name for kernel in build(model.proto).kernels) is not by_where
    half, placement = quantized(guarded(by_where=by_where), "fp16")
    assert any("_mha" in kernel.name for kernel in build(half.proto).kernels)
    in_low_bits = {decision.slot.node for decision in placement.quantized}
    assert ("scores" in in_low_bits) is not by_where
