"""Quantization noise, computed from a histogram.

Inside a bin the values are taken as spread evenly. Then the squared error of every quantization level is a
difference of running moments, and one threshold costs one step per level, whatever the number of values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrators.calibrator import Grid
from calibrators.histogram import Histogram
from calibrators.kernels import compile_loop

_NO_RANGE: Final = 1e-6
"""Range, in bin widths, that is used instead of a range of 0."""
_STEPS: Final = 96
"""Number of thresholds of the first grid below the maximum."""
_RATIO: Final = 256.0 ** (1.0 / _STEPS)
"""Ratio of two neighbours in the first grid of thresholds, whose last is 1/256 of the maximum."""
_FINER: Final = 8
"""Number of thresholds on each side of the best one in the finer grids."""


def noise_of(histogram: Histogram, grid: Grid) -> Callable[[float], float]:
    """Return the mean squared error of rounding and clipping values to a grid whose largest magnitude is `amax`.

    Always 0 without data.
    """
    if histogram.exponent is None:
        return lambda _: 0.0
    moments, width, total = running_moments(histogram), histogram.width, histogram.total

    def noise(amax: float) -> float:
        return float(squared_error(moments, max(amax / width, _NO_RANGE), grid.magnitudes)) * width**2 / total

    return noise


def running_moments(histogram: Histogram) -> NDArray[np.float64]:
    """Return (3, 4097): count, sum and sum of squares of the magnitudes below each bin edge, in bin widths."""
    counts = histogram.counts.astype(np.float64)
    bins = np.arange(counts.size)
    moments = np.zeros((3, counts.size + 1))
    np.cumsum(counts, out=moments[0, 1:])
    np.cumsum(counts * (bins + 0.5), out=moments[1, 1:])
    np.cumsum(counts * (bins * (bins + 1.0) + 1 / 3), out=moments[2, 1:])
    return moments


@compile_loop
def squared_error(moments: NDArray[np.float64], amax: Any, magnitudes: NDArray[np.float64]) -> Any:
    """Return the sum of squared errors in squared bin widths. `amax`, in bin widths, is the last of `magnitudes`."""
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


@compile_loop
def quietest(moments: NDArray[np.float64], highest: Any, magnitudes: NDArray[np.float64]) -> Any:
    """Return the threshold up to `highest` with the smallest squared error; both in bin widths.

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
