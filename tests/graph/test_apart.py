"""Scales one step apart differ for the builder and for no INT8 value."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.core.placement import SharedScale, SlotKind
from qdqtool.core.recipe import InsertOptions, PrepareOptions
from qdqtool.core.tensors import DType
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.encode import a_step_above, storable_as
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.insert import insert
from tests import models
from tests.graph.placing import opened, placement_for, table_for

EVERY_INTEGER = np.arange(-128, 128, dtype=np.float64)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16], ids=str)
@given(scale=st.floats(1e-30, 1e30))
def test_no_integer_changes_between_a_scale_and_the_step_above(dtype: DType, scale: float) -> None:
    here = storable_as(np.float32(scale), dtype)
    above = a_step_above(here, dtype)
    assert above >= here
    assert storable_as(above, dtype) == above
    again = np.rint(EVERY_INTEGER * np.float64(here) / np.float64(above))
    assert np.array_equal(again, EVERY_INTEGER)


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16], ids=str)
def test_the_step_above_a_usual_scale_is_larger(dtype: DType) -> None:
    assert a_step_above(np.float32(0.03), dtype) > storable_as(np.float32(0.03), dtype)


def test_bf16_has_no_scales_that_near() -> None:
    scale = storable_as(np.float32(0.03), DType.BFLOAT16)
    assert a_step_above(scale, DType.BFLOAT16) == scale


@pytest.mark.parametrize("types", ["fp32", "fp16"])
def test_a_tensor_apart_is_written_with_the_step_above(types: str, tmp_path: Path) -> None:
    proto = models.conv_chain()
    model = prepare(opened(proto, tmp_path), PrepareOptions())
    placement = placement_for(model)
    table = table_for(model, placement, models.feeds(proto))
    first, second = (entry.tensor for entry in placement.quantized if entry.kind is SlotKind.ACTIVATION)
    ranges = {entry.tensor: entry for entry in table.ranges}
    same = replace(ranges[second], amax=ranges[first].amax)
    table = replace(table, ranges=tuple(same if one.tensor == second else one for one in table.ranges))
    tie = SharedScale(tensors=(first, second), rule="test", reason="", apart=(second,))
    options = InsertOptions(types=types)
    pairs = find(insert(model, replace(placement, ties=(tie,)), table, options))
    (low,), (high,) = (pair.scale for pair in pairs if pair.kind is SlotKind.ACTIVATION)
    assert high == float(a_step_above(np.float32(low), DType(types)))
    assert high > low
