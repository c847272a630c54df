"""The threshold with the smallest mean squared error of the values.

Balances the error of clipping and the error of rounding. A good default if the consumer is linear (Conv, Gemm, MatMul),
because their output error grows with exactly this error.
"""

from __future__ import annotations

from typing import Final

from calibrators.calibrator import Calibrator, Grid, Range
from calibrators.histogram import Histogram
from calibrators.noise import quietest, running_moments


def mse(histogram: Histogram, grid: Grid) -> Range:
    """Return the threshold with the smallest squared error, at most the maximum."""
    if histogram.exponent is None:
        return Range(amax=0.0, method="mse")
    moments = running_moments(histogram)
    chosen = float(quietest(moments, histogram.amax / histogram.width, grid.magnitudes))
    return Range(amax=min(chosen * histogram.width, histogram.amax), method="mse")


PLUGIN: Final = Calibrator(choose=mse)
