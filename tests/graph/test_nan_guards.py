"""A Where against NaN after a Softmax goes if no row is masked out, or if other zeros replace it, and stays elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.core.recipe import PlacementOptions, PrepareOptions, Recipe
from qdqtool.graph.preparation.prepare import prepare
from tests import models
from tests.graph.placing import opened
from tests.placement.building import build, quantized

LENGTH = 6
CAUSAL = np.triu(np.full((1, 1, LENGTH, LENGTH), -np.inf, np.float32), 1)
EMPTY_ROW = np.where(np.arange(LENGTH)[:, None] == 2, -np.inf, CAUSAL).astype(np.float32)
OPEN = np.zeros((1, 1, LENGTH, LENGTH), np.float32)


def guarded(mask: np.ndarray | None, *, by: str = "Add", axis: int = -1) -> models.Sketch:
    s = models.Sketch()
    q, k, v = (s.input(name, (1, 2, LENGTH, 8)) for name in "qkv")
    scores = s.node("MatMul", [q, s.node("Transpose", [k], "kt", perm=[0, 1, 3, 2])], "product")
    scores = s.node("Mul", [scores, s.constant("scale", np.float32(0.35))], "scaled")
    if mask is None:
        scores = s.node("Add", [scores, s.input("mask", (1, 1, LENGTH, LENGTH))], "masked")
    elif by == "Add":
        scores = s.node("Add", [scores, s.constant("mask", mask)], "masked")
    else:
        low = s.constant("low", np.float32(-np.inf))
        scores = s.node("Where", [s.constant("kept", mask == 0), scores, low], "masked")
    soft = s.node("Softmax", [scores], "soft", axis=axis)
    guard = s.node("IsNaN", [soft], "is_nan")
    clean = s.node("Where", [guard, s.constant("zero", np.float32(0)), soft], "clean", name="guard")
    s.output(s.node("MatMul", [clean, v], "y"))
    return s


@pytest.mark.parametrize("by", ["Add", "Where"])
@pytest.mark.parametrize(
    ("mask", "stays"),
    [(OPEN, False), (CAUSAL, False), (EMPTY_ROW, True)],
    ids=["open", "causal", "empty row"],
)
def test_a_guard_goes_where_every_row_has_a_score(
    mask: np.ndarray, by: str, *, stays: bool, tmp_path: Path
) -> None:
    s = guarded(mask, by=by)
    model = prepare(opened(s.model(), tmp_path), PrepareOptions())
    assert ("guard" in model.view.by_name) is stays
    draw = np.random.default_rng(0)
    feeds = {name: draw.standard_normal((1, 2, LENGTH, 8)).astype(np.float32) for name in "qkv"}
    np.testing.assert_array_equal(models.run(model.proto, feeds)["y"], models.run(s.model(), feeds)["y"])


FIRST = np.where(np.arange(LENGTH) < 3, -np.inf, 0).astype(np.float32)
FLOOR = float(np.finfo(np.float32).min)


@pytest.mark.parametrize(
    ("steps", "stays"),
    [
        ([("Add", FIRST), ("Add", CAUSAL[0, 0] + FIRST)], True),
        ([("Add", FIRST), ("Add", FIRST[::-1])], True),
        ([("Add", FIRST), ("Add", FIRST)], False),
        ([("Add", np.maximum(FIRST, FLOOR)), ("Add", np.maximum(FIRST[::-1], FLOOR))], True),
        ([("Add", np.full(LENGTH, FLOOR, np.float32))], False),
        ([("Add", np.full(LENGTH, FLOOR, np.float32))] * 2, True),
        ([("Where", FIRST), ("Where", FIRST[::-1])], True),
        ([("Where", FIRST), ("Add", FIRST[::-1])], True),
        ([("Where", FIRST), ("Mul", np.float32(2))], False),
        ([("Where", FIRST), ("Mul", np.float32(-1))], True),
        ([("Add", FIRST), ("Div", np.float32(-2))], True),
        ([("Add", FIRST), ("Add", -FIRST)], True),
        ([("Add", np.float32(3e38)), ("Add", np.float32(3e38))], True),
    ],
)
def test_a_guard_stays_if_several_masks_leave_a_row_no_score(
    steps: list[tuple[str, np.ndarray]], *, stays: bool, tmp_path: Path
) -> None:
    s = models.Sketch()
    at = s.node("MatMul", [s.input("q", (1, 2, LENGTH, 8)), s.input("k", (1, 2, 8, LENGTH))], "product")
    for index, (op, value) in enumerate(steps):
        if op == "Where":
            low = s.constant(f"low{index}", np.float32(-np.inf))
            at = s.node("Where", [s.constant(f"kept{index}", value == 0), at, low], f"masked{index}")
        else:
            at = s.node(op, [at, s.constant(f"value{index}", value)], f"masked{index}")
    soft = s.node("Softmax", [at], "soft", axis=-1)
    zero = s.constant("zero", np.float32(0))
    clean = s.node("Where", [s.node("IsNaN", [soft], "is_nan"), zero, soft], "clean", name="guard")
    s.output(s.node("MatMul", [clean, s.input("v", (1, 2, LENGTH, 8))], "y"))
    model = prepare(opened(s.model(), tmp_path), PrepareOptions())
    assert ("guard" in model.view.by_name) is stays
    feeds = models.feeds(s.model())
    np.testing.assert_array_equal(models.run(model.proto, feeds)["y"], models.run(s.model(), feeds)["y"])


@pytest.mark.parametrize(
    "s", [guarded(None), guarded(CAUSAL, axis=2)], ids=["a mask that is an input", "another axis"]
)
def test_a_guard_stays_where_rows_may_be_empty(s: models.Sketch, tmp_path: Path) -> None:
    assert "guard" in prepare(opened(s.model(), tmp_path), PrepareOptions()).view.by_name


# --- masks that are computed -----------------------------------------------------------------------------------------

BATCH, HEADS, SIZE = 3, 4, 16
WIDTH = HEADS * SIZE
LOWEST = float(np.finfo(np.float32).min)
BOUND = PrepareOptions(bound_masks=True)


def block(
    low: float = -np.inf,
    *,
    by: str = "Add",
    rows: str = "causal",
    batch: int = BATCH,
    length: int = LENGTH,
    bias: float | None = None,
    projected: bool = True,
    kept: str = "",
) -> models.Sketch:
    """An attention whose mask comes from an input, as torch.onnx exports it; `kept` is an inner tensor that is an output too."""
    s = models.Sketch()
    x = s.input("x", (batch, length, WIDTH))
    flags = s.input("flags", (batch, 1, 1, length), onnx.TensorProto.BOOL)
    if rows == "causal":
        causal = s.constant("causal", np.tril(np.ones((1, 1, length, length), bool)))
        flags = s.node("And", [causal, flags], "both")
    elif rows == "per head":
        heads = s.constant("heads", np.arange(HEADS).reshape(1, HEADS, 1, 1) > 0)
        flags = s.node("And", [heads, flags], "both")
    apart = s.constant("apart", np.asarray([0, 0, HEADS, SIZE], np.int64))
    parts = {}
    for part, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        y = s.node("MatMul", [x, s.weight(f"{part}_w", WIDTH, WIDTH)], f"{part}_y")
        parts[part] = s.node(
            "Transpose", [s.node("Reshape", [y, apart], f"{part}_heads")], f"{part}_turned", perm=order
        )
    scores = s.node("MatMul", [parts["q"], parts["k"]], "product")
    scores = s.node("Mul", [scores, s.constant("scale", np.float32(0.25))], "scaled")
    if bias is not None:
        scores = s.node("Add", [scores, s.constant("bias", np.full((1, length), bias, np.float32))], "biased")
    zero, least = s.constant("zero", np.float32(0)), s.constant("low", np.float32(low))
    if by == "Add":
        scores = s.node("Add", [scores, s.node("Where", [flags, zero, least], "mask")], "masked")
    elif by == "Where":
        scores = s.node("Where", [flags, scores, least], "masked")
    else:
        scores = s.node("Where", [s.node("Not", [flags], "hidden"), least, scores], "masked")
    soft = s.node("Softmax", [scores], "soft", axis=-1)
    clean = s.node("Where", [s.node("IsNaN", [soft], "is_nan"), zero, soft], "clean", name="guard")
    y = s.node("MatMul", [clean, parts["v"]], "values")
    y = s.node("Transpose", [y], "back", perm=[0, 2, 1, 3])
    y = s.node("Reshape", [y, s.constant("joined", np.asarray([0, 0, WIDTH], np.int64))], "flat")
    if projected:
        y = s.node("MatMul", [y, s.weight("out_w", WIDTH, WIDTH)], "out")
    s.output(s.node("Add", [y, s.weight("out_b", WIDTH)], "y"), (batch, length, WIDTH))
    if kept:
        s.output(s.node("Identity", [kept], "also"))
    return s


def samples() -> dict[str, np.ndarray]:
    """A sample without any key, one without the first keys, and one with all."""
    flags = np.ones((BATCH, 1, 1, LENGTH), bool)
    flags[0], flags[1, ..., :2] = False, False
    return {
        "x": np.random.default_rng(0).standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32),
        "flags": flags,
    }


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("low", [-np.inf, LOWEST])
@pytest.mark.parametrize("by", ["Add", "Where", "inverted Where"])
@pytest.mark.parametrize("rows", ["keys", "causal", "per head"])
@pytest.mark.parametrize("projected", [True, False])
def test_an_attention_with_a_computed_mask_computes_the_same_without_its_guard(
    opset: int, low: float, by: str, rows: str, *, projected: bool, tmp_path: Path
) -> None:
    proto = block(low, by=by, rows=rows, projected=projected).model(opset)
    model = prepare(opened(proto, tmp_path), BOUND)
    assert "IsNaN" not in {node.op for node in model.view.nodes}
    assert model.view.by_name["values"].inputs[0] == "clean"  # the name that ranges and placements have
    zeros = model.view.by_name.get("out_answered")
    assert (zeros is not None) is (low == -np.inf and projected and rows != "per head")
    expected, result = models.run(proto, samples())["y"], models.run(model.proto, samples())["y"]
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "s",
    [
        guarded(None),
        block(kept="masked"),
        block(kept="soft"),
        block(LOWEST, bias=LOWEST),
        block(bias=-1e5),
        block(-10.0),
    ],
    ids=["a mask of floats", "scores read twice", "NaN read twice", "two masks", "a second mask", "a bias"],
)
def test_a_guard_stays_where_its_mask_is_unknown_or_read_elsewhere(s: models.Sketch, tmp_path: Path) -> None:
    assert "guard" in prepare(opened(s.model(), tmp_path), BOUND).view.by_name


def test_masks_are_bounded_for_the_builder_that_needs_it() -> None:
    assert Recipe().preparing.bound_masks
    assert not Recipe(place=PlacementOptions(target="10.13")).preparing.bound_masks
    assert not Recipe(prepare=PrepareOptions(bound_masks=False)).preparing.bound_masks


@pytest.mark.slow
@pytest.mark.parametrize("low", [-np.inf, LOWEST])
def test_an_attention_with_a_computed_mask_is_one_int8_kernel_only_without_its_guard(
    low: float, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    proto = block(low, batch=1, length=64).model()
    fused = {}
    for is_bound in (True, False):
        ready = prepare(opened(proto, tmp_path), PrepareOptions(bound_masks=is_bound))
        built = build(quantized(ready.proto)[0].proto)
        fused[is_bound] = sum("_mha_" in kernel.name for kernel in built.kernels), len(built.kernels)
    assert fused[True][0] == 1
    assert fused[False][0] == 0
    assert fused[True][1] < fused[False][1]
