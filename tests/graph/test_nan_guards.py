"""A Where against NaN behind a Softmax goes where no row of the scores is masked out, and stays elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.core.recipe import PrepareOptions
from qdqtool.graph.preparation.prepare import prepare
from tests import models
from tests.graph.placing import opened

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


@pytest.mark.parametrize(
    "s", [guarded(None), guarded(CAUSAL, axis=2)], ids=["a mask that is an input", "another axis"]
)
def test_a_guard_stays_where_rows_may_be_empty(s: models.Sketch, tmp_path: Path) -> None:
    assert "guard" in prepare(opened(s.model(), tmp_path), PrepareOptions()).view.by_name
