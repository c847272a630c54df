"""A free dimension that the model's own weights leave one length is of this length, and no other is touched."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cli.app import run
from qdqtool.graph.canonical.shapes import solve_dim
from tests import models
from tests.graph.placing import opened


def test_what_nothing_settles_stays_free(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("MatMul", [s.input("x", ["batch", "tokens", 8]), s.weight("w", 8, 4)], "y"))
    model = opened(s.model(), tmp_path)
    assert model.view.info("x").shape == ("batch", "tokens", 8)
    assert not [note for note in model.notes if "dynamic dimension" in note]


@pytest.mark.parametrize("length", ["", "wide"], ids=["without a name", "with a name"])
def test_the_rows_of_a_matrix_settle_the_dimension_that_is_concatenated(length: str, tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", ["batch", length or None])
    joined = s.node(
        "Concat", [x, s.node("MatMul", [s.input("z", ["batch", 3]), s.weight("v", 3, 5)], "vz")], "xz", axis=1
    )
    s.output(s.node("Relu", [s.node("MatMul", [joined, s.weight("w", 12, 2)], "y")], "relu"))
    model = opened(s.model(), tmp_path)
    assert model.view.info("x").shape == ("batch", 7)
    assert model.view.info("xz").shape == ("batch", 12)
    assert model.view.info("relu").shape == ("batch", 2)
    assert any("is 7: no other length matches the weights" in note for note in model.notes)


@pytest.mark.parametrize("name", ["", "?", None])
def test_a_dimension_of_an_input_without_a_name_gets_one(name: str | None, tmp_path: Path) -> None:
    """With an empty name, TensorRT takes the dimension for the number 0, and refuses every shape."""
    s = models.Sketch()
    s.output(s.relu("relu", s.input("x", ["batch", 3])), ["batch", 3])
    proto = s.model()
    dims = proto.graph.input[0].type.tensor_type.shape.dim
    dims[0].Clear()
    if name is not None:
        dims[0].dim_param = name
    model = opened(proto, tmp_path)
    assert model.view.inputs[0].shape == ("x_0", 3)
    assert model.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "x_0"


def test_two_lengths_for_one_dimension_are_left_to_the_runtime(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", ["batch", "wide"])
    s.output(s.node("MatMul", [x, s.weight("w", 12, 2)], "y"))
    s.output(s.node("MatMul", [x, s.weight("v", 11, 2)], "z"))
    assert opened(s.model(), tmp_path).view.info("x").shape == ("batch", "wide")


@pytest.mark.parametrize(
    ("op", "weights", "shape", "settings"),
    [
        ("Gemm", (9, 4), ["n", "wide"], {}),
        ("Gemm", (4, 9), ["n", "wide"], {"transB": 1}),
        ("Gemm", (9, 4), ["wide", "n"], {"transA": 1}),
        ("Conv", (6, 3, 3, 3), ["n", "wide", 9, 9], {"group": 3}),
        ("LSTM", (1, 16, 9), ["steps", "n", "wide"], {"hidden_size": 4}),
    ],
    ids=["Gemm", "Gemm of a turned matrix", "Gemm of a turned input", "Conv of groups", "LSTM"],
)  # fmt: skip
def test_every_product_settles_what_it_sums_over(
    op: str, weights: tuple[int, ...], shape: list[str | int], settings: dict[str, int], tmp_path: Path
) -> None:
    s = models.Sketch()
    further = [s.weight("r", 1, 16, 4)] if op == "LSTM" else []
    s.output(s.node(op, [s.input("x", shape), s.weight("w", *weights), *further], "y", **settings))
    wide = opened(s.model(), tmp_path).view.info("x").shape
    assert wide == tuple(9 if dim == "wide" else dim for dim in shape)


@given(
    length=st.integers(1, 10**6),
    factor=st.integers(1, 64),
    divisor=st.integers(1, 64),
    offset=st.integers(-99, 99),
)
def test_an_expression_is_solved_for_its_symbol(length: int, factor: int, divisor: int, offset: int) -> None:
    whole = length * divisor
    expression = f"{factor}*N/{divisor}{offset:+d}" if divisor > 1 else f"{factor}*N{offset:+d}"
    total = factor * length + offset
    assert solve_dim(expression, total) == ("N", whole)
    assert solve_dim(total, expression) == ("N", whole)


@given(length=st.integers(1, 99), divisor=st.integers(2, 64))
def test_no_broken_length_is_an_answer(length: int, divisor: int) -> None:
    assert solve_dim(f"{divisor}*N", length) == (("", 0) if length % divisor else ("N", length // divisor))
    assert solve_dim(f"N+{length}", length) == ("", 0)


def test_a_run_on_random_samples_draws_the_length_that_fits(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", ["batch", "wide"])
    both = s.node("Concat", [x, s.input("z", ["batch", 40])], "xz", axis=1)
    hidden = s.node("Relu", [s.node("MatMul", [both, s.weight("w", 96, 64)], "h")], "r")
    s.output(s.node("MatMul", [hidden, s.weight("v", 64, 32)], "y"))
    path = models.save(s.model(), tmp_path)
    words = ["run", str(path), "--samples", "random:2", "--out", str(tmp_path / "run")]
    assert run(words) == 0
