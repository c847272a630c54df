"""Whichever of max, percentile, entropy and mse measures the least quantization noise on the histogram.

The noise is the mean squared error of rounding and clipping, so the winner is nearly always `mse`, or `max` where
both agree; among equals the simplest wins, in the order above. The table names the winner of every tensor.
"""

from __future__ import annotations

from typing import Final

from calibrators.entropy import entropy
from calibrators.histogram import Histogram
from calibrators.max import largest
from calibrators.mse import mse
from calibrators.noise import noise_of
from calibrators.percentile import percentile
from calibrators.ranges import Range

CANDIDATES: Final = (largest, percentile, entropy, mse)


def best(histogram: Histogram) -> Range:
    """The candidate range with the smallest mean squared error."""
    noise = noise_of(histogram)
    return min((calibrator(histogram) for calibrator in CANDIDATES), key=lambda found: noise(found.amax))


PLUGIN: Final = best
