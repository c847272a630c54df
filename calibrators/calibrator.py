"""The interface that every file in `methods` implements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from calibrators.grid import Grid
from calibrators.histogram import Histogram
from calibrators.ranges import Range


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrator:
    """A method that chooses a range: a pure function of a histogram and of the numbers that the format can store.

    Attributes:
        choose: takes a histogram and a grid, and where users may give a number ("percentile:99.9") that as third.
        needs_bins: whether magnitudes must have been counted; the extremes are enough for `max`.
        competes: whether comparisons that look for the best one try it; False for those that repeat old set-ups and
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
