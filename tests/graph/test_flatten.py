"""Products behind an attention read two dimensions where weights alone are quantized, and compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.core.recipe import PlacementOptions, PrepareOptions, Recipe
from qdqtool.graph.beside_attention import is_split, reads_attention
from qdqtool.graph.preparation.prepare import prepare
from tests import models
from tests.graph.placing import opened

FREE = ("batch", 2, "tokens", 8)
FIXED = (2, 2, 5, 8)


def attention(shape: tuple[int | str, ...], *between: str) -> models.Sketch:
    s = models.Sketch()
    q, k, v = (s.input(name, shape) for name in "qkv")
    scores = s.node("MatMul", [q, s.node("Transpose", [k], "kt", perm=[0, 1, 3, 2])], "scores", name="scores")
    made = s.node("MatMul", [s.node("Softmax", [scores], "soft", axis=-1), v], "made", name="values")
    turned = s.node("Transpose", [made], "turned", perm=[0, 2, 1, 3])
    to = np.asarray([0, 0, 16] if between != ("Flatten",) else [-1, 16], np.int64)
    x = s.node("Reshape", [turned, s.constant("to", to)], "joined")
    for op in between:
        x = s.node(op, [x], f"{op}_done") if op != "Flatten" else x
    y = s.node("MatMul", [x, s.weight("w", 16, 24)], "y", name="out")
    s.output(s.node("Neg", [y], "z"))
    return s


@pytest.mark.parametrize("shape", [FIXED, ("batch", 2, 5, 8), FREE], ids=["fixed", "batch", "both"])
def test_the_product_reads_two_dimensions_and_computes_the_same(
    shape: tuple[int | str, ...], tmp_path: Path
) -> None:
    s = attention(shape)
    model = prepare(opened(s.model(), tmp_path), PrepareOptions(flatten=True))
    product = model.view.by_name["out"]
    assert len(model.view.info(product.inputs[0]).shape or ()) == 2
    assert not reads_attention(model.view, product)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(FIXED).astype(np.float32) for name in "qkv"}
    wanted, found = models.run(s.model(), feeds), models.run(model.proto, feeds)
    np.testing.assert_allclose(found["z"], wanted["z"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("between", ["Relu", "Flatten"])
def test_products_that_do_not_need_it_are_left(between: str, tmp_path: Path) -> None:
    model = prepare(opened(attention(FIXED, between).model(), tmp_path), PrepareOptions(flatten=True))
    assert "out_flat" not in model.view.by_name


def test_a_product_of_unknown_rank_is_left(tmp_path: Path) -> None:
    s = attention(FIXED)
    del s.initializers[0]
    s.input("to", ["rank"], onnx.TensorProto.INT64)
    model = prepare(opened(s.model(), tmp_path), PrepareOptions(flatten=True))
    feeds = {**models.feeds(s.model()), "to": np.asarray([2, 5, 16])}
    np.testing.assert_array_equal(models.run(model.proto, feeds)["z"], models.run(s.model(), feeds)["z"])


@pytest.mark.parametrize(
    ("place", "asked"),
    [
        ({}, False),
        ({"format": "fp8"}, False),
        ({"format": "int4-weights"}, True),
        ({"formats": {"*": "int8-weights"}}, True),
        ({"activations": "float"}, True),
    ],
)
def test_it_is_done_where_weights_alone_are_quantized(place: dict[str, object], asked: bool) -> None:
    recipe = Recipe(place=PlacementOptions.model_validate(place))
    assert recipe.preparing.flatten is asked
    assert (
        recipe.model_copy(update={"prepare": PrepareOptions(flatten=not asked)}).preparing.flatten
        is not asked
    )


def test_three_turned_parts_of_the_columns_split_a_product_and_two_halves_do_not(tmp_path: Path) -> None:
    s = models.Sketch()
    made = s.node("MatMul", [s.input("x", (1, 5, 8)), s.weight("w", 8, 24)], "made", name="qkv")
    gate = s.node("MatMul", ["x", s.weight("g", 8, 16)], "gated", name="gate")
    q, k, v = (
        s.node("Slice", [made, *(s.constant(f"{part}{word}", np.asarray([value])) for word, value in
                                 (("from", 8 * part), ("to", 8 * part + 8), ("axis", 2)))], f"part{part}")
        for part in range(3)
    )  # fmt: skip
    a, b = (
        s.node("Slice", [gate, *(s.constant(f"g{part}{word}", np.asarray([value])) for word, value in
                                 (("from", 8 * part), ("to", 8 * part + 8), ("axis", 2)))], f"half{part}")
        for part in range(2)
    )  # fmt: skip
    to = s.constant("heads", np.asarray([1, 5, 2, 4]))
    q, k, v = (
        s.node(
            "Transpose", [s.node("Reshape", [part, to], f"{part}_heads")], f"{part}_turned", perm=[0, 2, 1, 3]
        )
        for part in (q, k, v)
    )
    scores = s.node("MatMul", [q, s.node("Transpose", [k], "kt", perm=[0, 1, 3, 2])], "scores")
    values = s.node("MatMul", [s.node("Softmax", [scores], "soft", axis=-1), v], "values")
    values = s.node(
        "Reshape",
        [s.node("Transpose", [values], "back", perm=[0, 2, 1, 3]), s.constant("flat", np.asarray([1, 5, 8]))],
        "joined",
    )
    s.output(s.node("Add", [values, s.node("Mul", [a, s.node("Sigmoid", [b], "sig")], "glu")], "z"))
    view = opened(s.model(), tmp_path).view
    assert is_split(view, view.by_name["qkv"])
    assert not is_split(view, view.by_name["gate"])
