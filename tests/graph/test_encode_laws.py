"""Laws of the arithmetic of number formats: rounding, saturation, blocks, scales that can be stored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from qdqtool.core.tensors import FORMATS, FP8, INT4, INT8, MXFP8, NVFP4, DType
from qdqtool.graph.qdq.encode import (
    LARGEST_HALF,
    SMALLEST_HALF,
    a_step_above,
    block_scales,
    decode,
    effective,
    encode,
    storable_as,
)

ONE = np.asarray(1.0, np.float32)
FLOATS = st.floats(-100, 100, width=32)
BLOCKED = arrays.arrays(np.float32, (3, 64, 2), elements=FLOATS)
SCALES = st.floats(float(np.float32(1e-4)), 1e3, width=32)


@pytest.mark.parametrize("format_", [INT8, INT4], ids=str)
def test_halves_go_to_the_even_neighbour(format_) -> None:
    value = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5], np.float32)
    assert encode(value, ONE, format_, None).astype(np.float32).tolist() == [0, 2, 2, 0, -2, -2]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_what_is_too_large_becomes_the_largest_value(name) -> None:
    format_ = FORMATS[name]
    stored = encode(np.array([1e9, -1e9], np.float32), ONE, format_, None).astype(np.float32)
    assert stored.tolist() == [format_.qmax, format_.qmin]


def test_eight_bit_floats_end_at_448() -> None:
    stored = encode(np.array([447.0, 449.0, 1e4], np.float32), ONE, FP8, None).astype(np.float32)
    assert stored.tolist() == [448, 448, 448]


@settings(max_examples=40, deadline=None)
@given(value=BLOCKED, steps=arrays.arrays(np.float32, (3, 4, 2), elements=SCALES))
@pytest.mark.parametrize("format_", [INT4, NVFP4, MXFP8], ids=str)
def test_a_block_shares_the_scale_of_its_place(format_, value, steps) -> None:
    spread = np.repeat(steps, 16, axis=1)
    each = np.stack(
        [
            encode(one, np.asarray(scale, np.float32), format_, None)
            for one, scale in zip(value.ravel(), spread.ravel(), strict=True)
        ]
    ).reshape(value.shape)
    stored = encode(value, steps, format_, 1, 16)
    assert np.array_equal(stored.astype(np.float32), each.astype(np.float32))
    assert np.array_equal(decode(stored, steps, 1, 16), stored.astype(np.float32) * spread)


@settings(max_examples=40, deadline=None)
@given(value=BLOCKED)
def test_powers_of_two_clip_nothing_and_are_not_twice_too_large(value) -> None:
    scale, level = block_scales(value, MXFP8, 1, 32)
    amax = np.abs(value.reshape(3, 2, 32, 2)).max(axis=2)
    assert level is None
    assert np.array_equal(np.exp2(np.rint(np.log2(scale))), scale)
    assert (scale * 448 >= amax).all()
    assert (scale * 224 <= np.maximum(amax, 2.0**-100)).all()


@settings(max_examples=40, deadline=None)
@given(value=BLOCKED)
def test_two_levels_use_the_range_of_the_block_scales(value) -> None:
    scale, level = block_scales(value, NVFP4, 1, 16)
    amax = np.abs(value.reshape(3, 4, 16, 2)).max(axis=2)
    assert scale.max() <= 448
    if amax.max() < 1e-20:
        return  # float32 has no digits left for the scale of such scales
    assert scale.max() == 448
    kept = effective(scale, level) * 6
    assert np.allclose(kept, amax, rtol=1 / 16, atol=float(amax.max()) * 2.0**-8 / 448 + 1e-30)


@settings(max_examples=40, deadline=None)
@given(scale=st.floats(2 * SMALLEST_HALF, LARGEST_HALF / 2))
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32])
def test_a_stored_scale_is_the_next_one_up(dtype, scale) -> None:
    wanted = np.asarray(scale, np.float32)
    stored = storable_as(wanted, dtype)
    assert stored >= wanted
    assert storable_as(stored, dtype) == stored
    below = np.nextafter(stored, np.float32(0))
    assert stored == wanted or storable_as(np.asarray(below), dtype) == stored  # nothing storable in between


@settings(max_examples=40, deadline=None)
@given(scale=st.floats(1e-6, 1e4))
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16])
def test_no_integer_changes_by_a_scale_one_step_above(dtype, scale) -> None:
    here = storable_as(np.asarray(scale, np.float32), dtype)
    above = a_step_above(here, dtype)
    integers = np.arange(-128, 128)
    assert above >= here
    assert np.array_equal(encode(integers * here, above, INT8, None), integers)
    assert dtype is not DType.FLOAT32 or above > here


def test_weights_that_are_hardly_numbers_have_a_scale() -> None:
    value = np.full((1, 16), np.float32(1e-42))
    scale, level = block_scales(value, NVFP4, 1, 16)
    assert level is not None
    assert level > 0
    assert np.isfinite(scale).all()
    assert (scale > 0).all()


def test_what_a_float_type_cannot_hold_becomes_infinite_in_silence() -> None:
    told = decode(np.array([13.0, -13.0, 1.0]), np.float32(5100.0), None, None, np.float16)
    assert told.dtype == np.float16
    assert told.tolist() == [np.inf, -np.inf, 5100.0]
