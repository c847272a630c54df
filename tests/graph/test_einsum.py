"""Einsum and DFT that are matrix products become MatMul and compute the same; everything else stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.core.recipe import PrepareOptions
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from tests import models
from tests.graph.placing import opened

SIZES = {"b": 2, "h": 3, "i": 4, "j": 5, "k": 6, "d": 7, "n": 4, "m": 8, "w": 2, "q": 3}


def shape(labels: str) -> list[int]:
    return [SIZES[label] for label in labels]


def sketch(equation: str, *, left_constant: bool = False, right_constant: bool = False) -> models.Sketch:
    left, right = equation.replace(" ", "").partition("->")[0].split(",")
    s = models.Sketch()
    operands = [
        s.weight("w1", *shape(left)) if left_constant else s.input("x", shape(left)),
        s.weight("w2", *shape(right)) if right_constant else s.input("y", shape(right)),
    ]
    made = s.node("Einsum", operands, "made", name="sum", equation=equation)
    s.output(s.node("Neg", [made], "z"))
    return s


def prepared(s: models.Sketch, folder: Path, opset: int = 17) -> tuple[Model, set[str]]:
    model = prepare(opened(s.model(opset), folder), PrepareOptions())
    return model, {node.op for node in model.view.nodes}


def same(s: models.Sketch, model: Model, opset: int = 17) -> None:
    feeds = models.feeds(s.model(opset))
    wanted, found = models.run(s.model(opset), feeds), models.run(model.proto, feeds)
    assert wanted.keys() == found.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "equation",
    ["bij,bjk->bik", "bhid,bhjd->bhij", "bhij,bhjd->bhid", "ij,jk->ik", "bij,jk->bik", "ij,kj->ki",
     "bhid,bhjd->hbji", "bijd,bkd->bijk", "bhwd,hkd->bhwk", "bhwd,wkd->bhwk", "ikbn,jkbn->ijbn", "bnij,bjnkd->bindk",
     "bhijd,bjhkd->bihk", "b h i d, b h j d -> b h i j", "jbi,bkj->kib"],
)  # fmt: skip
def test_a_product_of_two_activations_is_one_matmul(equation: str, tmp_path: Path) -> None:
    s = sketch(equation)
    model, ops = prepared(s, tmp_path)
    assert "MatMul" in ops
    assert "Einsum" not in ops
    same(s, model)


@pytest.mark.parametrize(
    "equation", ["bij,jk->bik", "bnhd,hdm->bnm", "bnd,dhm->bnhm", "bnhd,hdmk->bnmk", "bnd,hdm->bhnm", "bndh,hdm->mbn"]
)  # fmt: skip
@pytest.mark.parametrize("swapped", [False, True], ids=["weights right", "weights left"])
def test_a_product_with_weights_is_one_matmul_with_a_matrix(
    equation: str, swapped: bool, tmp_path: Path
) -> None:
    if swapped:
        operands, result = equation.split("->")
        left, right = operands.split(",")
        s = sketch(f"{right},{left}->{result}", left_constant=True)
    else:
        s = sketch(equation, right_constant=True)
    model, ops = prepared(s, tmp_path)
    assert "Einsum" not in ops
    (product,) = (node for node in model.view.nodes if node.op == "MatMul")
    weights = model.view.constant(product.inputs[1])
    assert weights is not None
    assert weights.ndim == 2
    same(s, model)


@pytest.mark.parametrize(
    "equation", ["bij,bij->bij", "bi,bj->bij", "bij,jk->bk", "bii,ik->bk"],
    ids=["elementwise", "outer", "summed rows", "diagonal"],
)  # fmt: skip
def test_what_is_no_single_product_stays(equation: str, tmp_path: Path) -> None:
    _, ops = prepared(sketch(equation), tmp_path)
    assert "Einsum" in ops


@pytest.mark.parametrize(
    ("free", "written"),
    [((0,), True), ((1,), True), ((1, 2), False)],
    ids=["batch", "one of two rows", "both rows"],
)
def test_one_free_length_in_a_reshape_is_enough(free: tuple[int, ...], written: bool, tmp_path: Path) -> None:
    s = sketch("bijd,bkd->bijk")
    for place in free:
        for value in s.inputs if place == 0 else s.inputs[:1]:
            value.type.tensor_type.shape.dim[place].dim_param = f"n{place}"
    model, ops = prepared(s, tmp_path)
    assert ("Einsum" not in ops) == written
    same(sketch("bijd,bkd->bijk"), model)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("label", ["b", "d"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("equation", ["bid,bjd->bij", "bihd,bjhd->bijh", "bihd,bjkhd->bijk"])
def test_an_operand_that_is_repeated_along_a_label_stays(
    equation: str, side: int, label: str, constant: bool, tmp_path: Path
) -> None:
    s = models.Sketch()
    operands = []
    for index, labels in enumerate(equation.partition("->")[0].split(",")):
        lengths = [1 if index == side and entry == label else SIZES[entry] for entry in labels]
        operands.append(s.weight("w", *lengths) if constant and index else s.input(f"x{index}", lengths))
    made = s.node("Einsum", operands, "made", name="sum", equation=equation)
    s.output(s.node("Neg", [made], "z"))
    same(s, prepared(s, tmp_path)[0])


@pytest.mark.parametrize("equation", ["...ij,jk->...ik", "bij->bji", "bij,jk", "bij,jk,kd->bid"])
def test_other_forms_stay(equation: str, tmp_path: Path) -> None:
    s = models.Sketch()
    names = ("x", "y", "z")[: equation.partition("->")[0].count(",") + 1]
    terms = equation.replace("...", "b").partition("->")[0].split(",")
    operands = [s.input(name, shape(term)) for name, term in zip(names, terms, strict=True)]
    s.output(s.node("Einsum", operands, "made", equation=equation))
    _, ops = prepared(s, tmp_path)
    assert "Einsum" in ops


def test_einsum_stays_where_the_recipe_says_so(tmp_path: Path) -> None:
    model = prepare(opened(sketch("ij,jk->ik").model(), tmp_path), PrepareOptions(einsum=False))
    assert [node.op for node in model.view.nodes] == ["Einsum", "Neg"]


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [-2, 1, 2])
@pytest.mark.parametrize("opset", [18, 22])
def test_a_fourier_transform_is_one_matmul(
    opset: int, axis: int, parts: int, inverse: int, tmp_path: Path
) -> None:
    s = models.Sketch()
    x = s.input("x", (2, 6, 5, parts))
    if opset < 20:
        made = s.node("DFT", [x], "made", name="spectrum", axis=axis % 4, inverse=inverse)
    else:
        made = s.node(
            "DFT", [x, "", s.constant("at", np.int64(axis))], "made", name="spectrum", inverse=inverse
        )
    s.output(s.node("Neg", [made], "z"))
    model, ops = prepared(s, tmp_path, opset)
    assert "MatMul" in ops
    assert "DFT" not in ops
    same(s, model, opset)


@pytest.mark.parametrize("length", [None, 5])
def test_half_of_a_spectrum_is_computed_where_it_is_asked_for(length: int | None, tmp_path: Path) -> None:
    s = models.Sketch()
    given = "" if length is None else s.constant("length", np.int64(length))
    made = s.node("DFT", [s.input("x", (2, 3, 5, 1)), given], "made", name="spectrum", onesided=1)
    s.output(s.node("Neg", [made], "z"))
    model, ops = prepared(s, tmp_path, 20)
    assert "DFT" not in ops
    same(s, model, 20)


@pytest.mark.parametrize(
    ("shape", "length"), [((2, 3, "n", 1), None), ((2, 3, 5, 1), 4), ((1, 1, 2048, 2), None)],
    ids=["free length", "cut", "long"],
)  # fmt: skip
def test_other_transforms_stay(shape: tuple[int | str, ...], length: int | None, tmp_path: Path) -> None:
    s = models.Sketch()
    given = "" if length is None else s.constant("length", np.int64(length))
    s.output(s.node("Neg", [s.node("DFT", [s.input("x", shape), given], "made")], "z"))
    assert "DFT" in prepared(s, tmp_path, 20)[1]
