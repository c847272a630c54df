"""Ranges of constants, per channel. All values are in memory, so no histogram is needed."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrators.calibrator import CalibrationDataError, Grid
from calibrators.kernels import compile_loop

FRACTIONS: Final = tuple(float(fraction) for fraction in np.linspace(1.0, 0.4, 61))
"""Thresholds that `mse` tries, as shares of a channel's maximum; the widest wins if several are equal."""


def channel_max(weights: NDArray[Any], axis: int | None) -> NDArray[np.float64]:
    """Return the largest magnitude of every channel along `axis`, (channels,); (1,) for the whole tensor if None.

    Raises:
        CalibrationDataError: NaN or Inf, no elements, or no such axis.
    """
    rows = _rows(weights, axis)
    amax: NDArray[np.float64] = np.abs(rows).max(axis=1).astype(np.float64)
    return amax


def channel_mse(weights: NDArray[Any], axis: int | None, grid: Grid) -> NDArray[np.float64]:
    """Return the threshold of every channel with the smallest mean squared error on a grid, (channels,).

    Raises:
        CalibrationDataError: NaN or Inf, no elements, or no such axis.
    """
    rows = _rows(weights, axis)
    largest = np.abs(rows).max(axis=1)
    if grid.is_even:
        return _quietest(rows, largest, np.array(FRACTIONS), np.float32(grid.top)).astype(np.float64)
    return np.array([_quietest_uneven(row, amax, grid) for row, amax in zip(rows, largest, strict=True)])


def _rows(weights: NDArray[Any], axis: int | None) -> NDArray[np.float32]:
    """Return one row of float32 per channel.

    Raises:
        CalibrationDataError: as above.
    """
    values = np.asarray(weights, dtype=np.float32)
    if axis is not None and not -values.ndim <= axis < values.ndim:
        raise CalibrationDataError(f"a tensor of {values.ndim} dimensions has no axis {axis}")
    if values.size == 0:
        raise CalibrationDataError("holds no elements")
    bad = values.size - int(np.count_nonzero(np.isfinite(values)))
    if bad:
        raise CalibrationDataError(f"{bad} of {values.size} elements NaN or Inf")
    rows = (
        values.reshape(1, -1)
        if axis is None
        else np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    )
    return np.ascontiguousarray(rows)


def _quietest_uneven(row: NDArray[np.float32], largest: np.float32, grid: Grid) -> float:
    """Return the threshold of one channel with the smallest mean squared error on any grid.

    Values go to the nearest magnitude.
    """
    if largest == 0:
        return 0.0
    values = np.abs(row).astype(np.float64)
    between = (grid.magnitudes[1:] + grid.magnitudes[:-1]) / 2

    def error(fraction: float) -> float:
        step = float(largest) * fraction / grid.top
        stored = grid.magnitudes[np.searchsorted(between, values / step)]
        return float(np.square(values - stored * step).sum())

    return float(largest) * min(FRACTIONS, key=error)


@compile_loop
def _quietest(
    rows: NDArray[np.float32],
    largest: NDArray[np.float32],
    fractions: NDArray[np.float64],
    top: Any,
) -> NDArray[np.float32]:
    chosen = largest.copy()
    for row in range(rows.shape[0]):
        if largest[row] == 0:
            continue
        least = np.inf
        for fraction in fractions:
            amax = np.float32(largest[row] * fraction)
            step = amax / top
            reciprocal = np.float32(1) / step
            error = 0.0
            for value in rows[row]:
                level = min(top, np.rint(abs(value) * reciprocal))
                missed = abs(value) - level * step
                error += missed * missed
            if error < least:
                least, chosen[row] = error, amax
    return chosen
