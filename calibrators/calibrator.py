"""The interface that every file in `methods` implements, and the types in it: ranges, grids and errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram

# --- error -----------------------------------------------------------------------------------------------------------
# The only error class of this package.


class CalibrationDataError(ValueError):
    """The numbers cannot make a range. The message says which numbers, and how many of them."""


# --- ranges ----------------------------------------------------------------------------------------------------------
# The result of a calibrator.


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """The magnitude that becomes the largest number of a format.

    Attributes:
        amax: finite, never negative, never above the largest magnitude seen; 0 when nothing but zeros was seen.
        method: the calibrator that chose it.
    """

    amax: float
    method: str


# --- grid ------------------------------------------------------------------------------------------------------------
# The magnitudes that a number format can store.


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grid:
    """The magnitudes of a symmetric format, in units of the format: 0, 1 ... 127 for INT8; 0, 0.5, 1, 1.5, 2, 3, 4, 6 for FP4.

    Attributes:
        magnitudes: (levels,) float64, ascending from 0; a range's amax becomes the last one.
    """

    magnitudes: NDArray[np.float64]

    @property
    def top(self) -> float:
        """The largest magnitude: scale = amax / top."""
        return float(self.magnitudes[-1])

    @property
    def is_even(self) -> bool:
        """True if neighbours differ by 1, as for integers."""
        return bool((np.diff(self.magnitudes) == 1).all())


def grid_of(magnitudes: Sequence[float] | NDArray[np.float64]) -> Grid:
    """Return the grid of these magnitudes, in any order. Signs and duplicates are ignored."""
    return Grid(magnitudes=np.unique(np.abs(np.asarray(magnitudes, np.float64))))


# --- calibrator ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrator:
    """A method that chooses a range: a pure function of a histogram and of the numbers that the format can store.

    Attributes:
        choose: takes a histogram and a grid, and where users may give a number ("percentile:99.9") that as third.
        needs_bins: whether magnitudes must have been counted; the extremes are enough for `max`.
        competes: whether comparisons for the best calibrator try it; False for calibrators that repeat old set-ups and
            those that hand over to others.
    """

    choose: Callable[..., Range]
    needs_bins: bool = True
    competes: bool = True

    def __call__(self, histogram: Histogram, grid: Grid, *parameter: float) -> Range:
        """Return the range of a tensor.

        Raises:
            CalibrationDataError: a parameter outside its limits.
        """
        return self.choose(histogram, grid, *parameter)
