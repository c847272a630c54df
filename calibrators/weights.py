"""Ranges of constants, per channel, and their rounding. All values are in memory, so no histogram is needed."""

from __future__ import annotations

from collections.abc import Callable
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


# --- rounding --------------------------------------------------------------------------------------------------------
# Rounding of weights for the least noise at the output of their layer.
#
# A layer computes `x @ w.T`. With the second moments H = mean(x.T @ x) of its inputs, the squared error of its output is
# `d @ H @ d` for an error d of the weights of one output channel. Rounding to the nearest makes each |d| small; rounding
# by H lets the errors of different weights cancel.
#
# Sources: Frantar et al., "GPTQ" (ICLR 2023), with the columns ordered by their energy, which costs nothing if all
# scales are fixed before; Nagel et al., "Up or Down?" (ICML 2020), called AdaRound, for why the nearest is not the
# best: they let each weight go up or down by gradient descent on a soft choice. The error is quadratic in the choices,
# so the descent can also change one weight per row at a time, which needs only H (`up_or_down`).

Floats = NDArray[np.floating[Any]]
Nearest = Callable[[Floats, "slice | NDArray[np.intp]"], Floats]

DAMPING: Final = 0.01
"""Share of the mean energy that is added to every input, because samples never show all directions."""
_MOVES: Final = 1024
"""Most weights of a row that change to their other neighbour; real rows change far fewer."""
_LEAST: Final = 1e-6
"""Relative decrease of the error that a change must reach; a smaller one is within the rounding of float32."""
_ELEMENTS: Final = 4 << 20
"""Weights processed together, which bounds memory."""
_FAR: Final = 1e4
"""A number of steps beyond the last number of every format."""
_TOGETHER: Final = 128
"""Columns per block: the columns after a block are updated at once, so that most of the work is matrix products."""
_NEXT: Final = 16
"""Columns inside a block that are updated one by one."""
_BASE: Final = 64
"""Largest triangle that is inverted directly."""


def round_columns(weights: Floats, moments: Floats, nearest: Nearest) -> NDArray[np.float32]:
    """Round weights to the grid of their format, column by column, so that the errors of a row cancel at the output.

    Args:
        weights: (groups, rows, columns); the rows of a group read the same inputs.
        moments: (groups, columns, columns), symmetric; the scale does not matter.
        nearest: given columns (groups, rows, n) and their numbers, the nearest values of the grid.
    """
    spread = _inverse_roots(moments)
    if spread is None:
        return nearest(weights, slice(None)).astype(np.float32)
    order, roots = spread
    # a column of the matrix is contiguous in memory here; one column at a time is read and written
    left = np.take_along_axis(np.swapaxes(weights, 1, 2).astype(np.float32), order[:, :, None], axis=1)
    result = np.empty_like(left)
    columns = left.shape[1]
    for start in range(0, columns, _TOGETHER):
        end = min(start + _TOGETHER, columns)
        missed = np.empty((left.shape[0], end - start, left.shape[2]), np.float32)
        for first in range(start, end, _NEXT):
            last = min(first + _NEXT, end)
            for column in range(first, last):
                value = left[:, column]
                result[:, column] = nearest(value[:, :, None], order[:, column])[:, :, 0]
                error = (value - result[:, column]) / roots[:, column, column][:, None]
                missed[:, column - start] = error
                left[:, column + 1 : last] -= roots[:, column, column + 1 : last, None] * error[:, None, :]
            made_up = np.swapaxes(roots[:, first:last, last:end], 1, 2)
            left[:, last:end] -= made_up @ missed[:, first - start : last - start]
        left[:, end:] -= np.swapaxes(roots[:, start:end, end:], 1, 2) @ missed
    back = np.argsort(order, axis=1)
    return np.ascontiguousarray(np.swapaxes(np.take_along_axis(result, back[:, :, None], axis=1), 1, 2))


def up_or_down(weights: Floats, moments: Floats, nearest: Nearest, steps: Floats) -> NDArray[np.float32]:
    """Round each weight up or down on a grid with even steps, so that the errors of a row cancel at the output.

    From the nearest on, every row moves the weight that lowers its error most to its other neighbour, until none does.

    Args:
        weights: as in `round_columns`.
        moments: as in `round_columns`.
        nearest: as in `round_columns`.
        steps: distance of neighbours, (groups, rows, columns), or (groups, rows, 1).
    """
    weights = weights.astype(np.float32)
    result = nearest(weights, slice(None)).astype(np.float32)
    damped = _damp(moments)
    if damped is None:
        return result
    steps = np.broadcast_to(steps, weights.shape)
    ends = [nearest(steps * np.float32(sign * _FAR), slice(None)) for sign in (-1, 1)]
    rows = max(1, _ELEMENTS // (weights.shape[0] * weights.shape[2]))
    for start in range(0, weights.shape[1], rows):
        part = np.s_[:, start : start + rows]
        _descend(result[part], weights[part], damped, steps[part], (ends[0][part], ends[1][part]))
    return result


def _descend(
    result: Floats, weights: Floats, moments: Floats, steps: Floats, ends: tuple[Floats, Floats]
) -> None:
    """Change the weights of `result`, one weight of each row at a time."""
    energies = np.diagonal(moments, axis1=1, axis2=2)[:, None, :]
    errors = result - weights
    slopes = errors @ moments
    groups, rows = np.arange(errors.shape[0])[:, None], np.arange(errors.shape[1])[None, :]
    for _ in range(_MOVES):
        moves = np.where(errors > 0, -steps, steps)
        change = moves * (2 * slopes + moves * energies)
        # The largest number of the format has no larger neighbour.
        half = steps / 2
        outside = (result + moves < ends[0] - half) | (result + moves > ends[1] + half)
        change[outside] = np.inf
        best = change.argmin(axis=2)
        pays = change[groups, rows, best] < -_LEAST * np.abs((errors * slopes).sum(axis=2))
        if not pays.any():
            return
        moved = np.where(pays, moves[groups, rows, best], np.float32(0))
        result[groups, rows, best] += moved
        errors[groups, rows, best] += moved
        slopes += moved[:, :, None] * moments[groups, best]


def _damp(moments: Floats) -> NDArray[np.float32] | None:
    """Return the moments with some energy added to every input; None if they are not finite."""
    damped = moments.astype(np.float32)
    diagonal = np.arange(damped.shape[1])
    mean = damped[:, diagonal, diagonal].mean(axis=1, keepdims=True)
    damped[:, diagonal, diagonal] += DAMPING * mean
    return damped if np.isfinite(damped).all() else None


def output_errors(missed: Floats, moments: Floats) -> NDArray[np.float64]:
    """Return the mean squared error of every output, (groups, rows), for weight errors of (groups, rows, columns)."""
    products = missed.astype(np.float32) @ moments.astype(np.float32)
    errors: NDArray[np.float64] = np.einsum("grk,grk->gr", products, missed, dtype=np.float64)
    return errors


def _inverse_roots(moments: Floats) -> tuple[NDArray[np.intp], NDArray[np.float32]] | None:
    """Return the order of the columns by energy, and the upper Cholesky factor of the inverse in that order.

    None if it does not exist.
    """
    energies = np.diagonal(moments, axis1=1, axis2=2).astype(np.float64)
    mean = energies.mean(axis=1, keepdims=True)
    if not np.isfinite(mean).all():
        return None
    order = np.argsort(-energies, axis=1, kind="stable")
    # For the reversed matrix, the inverse of the lower factor is the reversed upper factor of the inverse.
    turned = order[:, ::-1]
    lines = np.arange(len(moments))[:, None, None]
    # several copies of the largest moments are hundreds of MB, so each is freed as soon as the next exists
    damped = moments[lines, turned[:, :, None], turned[:, None, :]].astype(np.float64)
    diagonal = np.arange(moments.shape[1])
    # An input that is always 0 has no influence: its weights are rounded to nearest.
    damped[:, diagonal, diagonal] += np.where(mean > 0, DAMPING * mean, 1.0)
    try:
        roots = np.linalg.cholesky(damped)
        del damped
        _invert_lower(roots)
    except np.linalg.LinAlgError:
        return None
    return order, np.ascontiguousarray(roots[:, ::-1, ::-1], np.float32)


def _invert_lower(factors: Floats) -> None:
    """Replace lower triangles, (groups, n, n), by their inverses, by halves, so that most of the work is matrix products."""
    size = factors.shape[1]
    if size <= _BASE:
        factors[:] = np.tril(np.linalg.inv(factors))
        return
    half = size // 2
    first, corner, second = factors[:, :half, :half], factors[:, half:, :half], factors[:, half:, half:]
    _invert_lower(first)
    _invert_lower(second)
    corner[:] = -second @ corner @ first
