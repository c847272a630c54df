"""Copies of one weight in blocks have scales that differ, because the builder merges short lists that are equal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement, QuantSpec
from qdqtool.core.recipe import InsertOptions, PrepareOptions
from qdqtool.core.tensors import INT4, DType
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.encode import made_distinct, storable_as
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.insert import insert
from tests import models
from tests.graph.placing import decision, opened, weight_range


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16], ids=str)
@given(
    scale=st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=6).map(
        lambda found: np.array(found, np.float32)
    ),
    copies=st.integers(1, 14),
)
def test_every_copy_has_scales_of_its_own_a_few_steps_away(
    dtype: DType, scale: np.ndarray, copies: int
) -> None:
    first = storable_as(scale, dtype)
    found = [first, *(made_distinct(scale, dtype, number) for number in range(1, copies + 1))]
    assert len({one.tobytes() for one in found}) == copies + 1
    steps = -(-copies // scale.size)
    for one in found:
        assert np.array_equal(storable_as(one, dtype), one)
        assert np.all(one >= first)
        assert np.all(one <= first * (1 + 2.0**-7) ** steps)


@pytest.mark.parametrize("types", ["fp32", "fp16", "bf16"])
def test_a_layer_that_runs_three_times_has_three_lists_of_scales(types: str, tmp_path: Path) -> None:
    s = models.Sketch()
    x, w = s.input("x", (4, 64)), s.weight("w", 64, 64)
    for place in range(3):
        x = s.node("Relu", [s.node("MatMul", [x, w], f"y{place}", name=f"mm{place}")], f"z{place}")
    s.output(x)
    model = prepare(opened(s.model(), tmp_path), PrepareOptions())
    spec = QuantSpec(format=INT4, axis=0, block=32)
    found = [replace(decision(f"mm{place}", 1, w, weight=True), op="MatMul", spec=spec) for place in range(3)]
    table = CalibrationTable(ranges=(weight_range(model, w, None),))
    made = insert(model, Placement(decisions=tuple(found), ties=()), table, InsertOptions(types=types))
    pairs = find(made)
    assert len({pair.tensor for pair in pairs}) == len({pair.scale for pair in pairs}) == len(pairs) == 3
