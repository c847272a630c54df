"""How much noise quantization adds, read off a histogram.

Inside a bin the values are taken as spread evenly. Then the squared error of every quantization level is a
difference of running moments, and one threshold costs one step per level, whatever the number of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrators.compiled import compiled_beyond
from calibrators.grid import Grid
from calibrators.histogram import Histogram

_NO_RANGE: Final = 1e-6
"""Bin widths; stands for a range of 0."""
_STEPS: Final = 96
"""Thresholds of the first grid below the maximum."""
_RATIO: Final = 256.0 ** (1.0 / _STEPS)
"""Of two neighbours in the first grid of thresholds, whose last is 1/256 of the maximum."""
_FINER: Final = 8
"""Thresholds on each side of the best one in the finer grids."""


def noise_of(histogram: Histogram, grid: Grid) -> Callable[[float], float]:
    """What a range costs: mean squared error of rounding and clipping to a grid with `amax` as its largest magnitude.

    Always 0 without data.
    """
    if histogram.exponent is None:
        return lambda _: 0.0
    moments, width, total = running_moments(histogram), histogram.width, histogram.total

    def noise(amax: float) -> float:
        return float(squared_error(moments, max(amax / width, _NO_RANGE), grid.magnitudes)) * width**2 / total

    return noise


def running_moments(histogram: Histogram) -> NDArray[np.float64]:
    """(3, 4097): the number, the sum and the sum of squares of magnitudes below each bin edge, in bin widths."""
    counts = histogram.counts.astype(np.float64)
    bins = np.arange(counts.size)
    moments = np.zeros((3, counts.size + 1))
    np.cumsum(counts, out=moments[0, 1:])
    np.cumsum(counts * (bins + 0.5), out=moments[1, 1:])
    np.cumsum(counts * (bins * (bins + 1.0) + 1 / 3), out=moments[2, 1:])
    return moments


def _squared_errors(
    moments: NDArray[np.float64], amax: NDArray[np.float64], magnitudes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """`squared_error` for several thresholds, (n,), in NumPy: the same operations in the same order, level by level."""
    size, last = moments.shape[1] - 1, magnitudes.size - 1
    step = (amax / magnitudes[last])[:, None]
    edges = (magnitudes + np.append(magnitudes[1:], magnitudes[last])) / 2 * step
    beyond = edges >= size
    beyond[:, last] = True
    index = np.where(beyond, 0, edges).astype(np.intp)
    whole = index.astype(np.float64)
    squares = edges * edges
    density = moments[0, index + 1] - moments[0, index]
    parts = (edges - whole, squares - whole * whole, squares * edges - whole * whole * whole)
    below = []
    for power, part in enumerate(parts):
        share = density * part
        if power:
            share /= power + 1
        found = np.where(beyond, moments[power, size], moments[power, index] + share)
        below.append(np.diff(found, axis=1, prepend=0.0))
    value = magnitudes * step
    errors = below[2] - 2 * value * below[1] + value * value * below[0]
    # Nothing is left behind the first edge that lies beyond all bins.
    errors[np.cumsum(beyond, axis=1) - beyond > 0] = 0.0
    summed: NDArray[np.float64] = np.maximum(np.cumsum(errors, axis=1)[:, last], 0.0)
    return summed


def _squared_error_once(moments: NDArray[np.float64], amax: Any, magnitudes: NDArray[np.float64]) -> Any:
    return _squared_errors(moments, np.array([amax], np.float64), magnitudes)[0]


@compiled_beyond(_squared_error_once)
def squared_error(moments: NDArray[np.float64], amax: Any, magnitudes: NDArray[np.float64]) -> Any:
    """Sum of squared errors in squared bin widths; `amax`, which becomes the last of `magnitudes`, in bin widths."""
    size = moments.shape[1] - 1
    last = magnitudes.size - 1
    step = amax / magnitudes[last]
    error = 0.0
    zeroth = first = second = 0.0
    for level in range(last + 1):
        edge = (magnitudes[level] + magnitudes[min(level + 1, last)]) / 2 * step
        if level == last or edge >= size:
            next_zeroth, next_first, next_second = moments[0, size], moments[1, size], moments[2, size]
        else:
            index = int(edge)
            density = moments[0, index + 1] - moments[0, index]
            next_zeroth = moments[0, index] + density * (edge - index)
            next_first = moments[1, index] + density * (edge * edge - index * index) / 2
            next_second = (
                moments[2, index] + density * (edge * edge * edge - float(index) * index * index) / 3
            )
        value = magnitudes[level] * step
        error += (
            (next_second - second) - 2 * value * (next_first - first) + value * value * (next_zeroth - zeroth)
        )
        zeroth, first, second = next_zeroth, next_first, next_second
        if edge >= size:
            break
    return max(error, 0.0)


def _quietest_few(moments: NDArray[np.float64], highest: Any, magnitudes: NDArray[np.float64]) -> Any:
    """`quietest` in NumPy; of equal thresholds the first wins in both."""
    tried = [float(highest)]
    for _ in range(_STEPS):
        tried.append(tried[-1] / _RATIO)
    errors = _squared_errors(moments, np.array(tried), magnitudes)
    best, least = tried[int(errors.argmin())], errors.min()
    span = math.log(_RATIO)
    for _ in range(3):
        tried = [min(best * math.exp(span * step / _FINER), highest) for step in range(-_FINER, _FINER + 1)]
        errors = _squared_errors(moments, np.array(tried), magnitudes)
        if errors.min() < least:
            best, least = tried[int(errors.argmin())], errors.min()
        span /= _FINER
    return best


@compiled_beyond(_quietest_few)
def quietest(moments: NDArray[np.float64], highest: Any, magnitudes: NDArray[np.float64]) -> Any:
    """The threshold up to `highest` with the smallest squared error; both in bin widths.

    A geometric grid down to 1/256 of the maximum, then three ever finer ones around the best point.
    """
    best = highest
    least = squared_error(moments, highest, magnitudes)
    candidate = highest
    for _ in range(_STEPS):
        candidate /= _RATIO
        error = squared_error(moments, candidate, magnitudes)
        if error < least:
            best, least = candidate, error
    span = math.log(_RATIO)
    for _ in range(3):
        centre = best
        for step in range(-_FINER, _FINER + 1):
            candidate = min(centre * math.exp(span * step / _FINER), highest)
            error = squared_error(moments, candidate, magnitudes)
            if error < least:
                best, least = candidate, error
        span /= _FINER
    return best
