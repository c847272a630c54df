"""Ranges of weights, per channel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators.calibrator import CalibrationDataError
from calibrators.weights import channel_max, channel_mse
from qdqtool.core.grids import grid_for
from qdqtool.core.tensors import FORMATS, INT8

GRID = grid_for(INT8)
WEIGHTS = np.random.default_rng(5).standard_normal((4, 3, 2, 5)).astype(np.float32)


@pytest.mark.parametrize("axis", [0, 1, 3, -1])
def test_max_is_the_largest_magnitude_of_each_channel(axis: int) -> None:
    others = tuple(dim for dim in range(4) if dim != axis % 4)
    assert np.array_equal(channel_max(WEIGHTS, axis), np.abs(WEIGHTS).max(axis=others))


def test_without_an_axis_there_is_one_range() -> None:
    assert channel_max(WEIGHTS, None) == [np.abs(WEIGHTS).max()]
    assert channel_mse(WEIGHTS, None, GRID).shape == (1,)


def error(weights: np.ndarray, amax: np.ndarray) -> np.ndarray:
    step = (amax / 127)[:, None]
    return ((weights - np.clip(np.rint(weights / step), -127, 127) * step) ** 2).sum(axis=1)


@given(arrays(np.float32, (3, 16), elements=st.floats(-1000, 1000, width=32)))
def test_mse_never_has_a_larger_error_than_max(weights: np.ndarray) -> None:
    weights[:, 0] = 1.0
    amax, quiet = channel_max(weights, 0), channel_mse(weights, 0, GRID)
    assert np.all(quiet <= amax)
    assert np.all(error(weights, quiet) <= error(weights, amax) * (1 + 1e-4) + 1e-9)


def test_mse_clips_a_lone_outlier() -> None:
    weights = np.append(np.random.default_rng(1).standard_normal(100_000), 7.0)[None]
    assert channel_mse(weights, 0, GRID)[0] < 7.0


def test_a_channel_of_zeros_has_range_zero() -> None:
    weights = WEIGHTS.copy()
    weights[2] = 0
    assert channel_max(weights, 0)[2] == 0 == channel_mse(weights, 0, GRID)[2]


@pytest.mark.parametrize(
    ("weights", "axis", "words"),
    [
        (np.array([[1.0, np.nan], [np.inf, 2.0]]), 0, "2 of 4 elements NaN or Inf"),
        (np.zeros((0, 3)), 0, "no elements"),
        (np.ones(3), 1, "no axis 1"),
    ],
    ids=["not finite", "empty", "no such axis"],
)
def test_weights_without_a_range_are_refused(weights: np.ndarray, axis: int, words: str) -> None:
    with pytest.raises(CalibrationDataError, match=words):
        channel_max(weights, axis)
    with pytest.raises(CalibrationDataError, match=words):
        channel_mse(weights, axis, GRID)


@pytest.mark.parametrize("form", ["int4", "fp8", "nvfp4"])
def test_mse_fits_the_range_to_the_format(form: str) -> None:
    grid = grid_for(FORMATS[form])
    amax = channel_mse(WEIGHTS, 0, grid)
    for chosen, channel in zip(amax, WEIGHTS, strict=True):
        errors = {}
        for candidate in (chosen, np.abs(channel).max()):
            step = candidate / grid.top
            nearest = np.abs(np.abs(channel)[..., None] / step - grid.magnitudes).min(axis=-1)
            errors[candidate] = float(((nearest * step) ** 2).sum())
        assert errors[chosen] <= min(errors.values()) * (1 + 1e-6)
