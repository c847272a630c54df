"""The calibrator with the least quantization noise on the histogram.

The noise is the mean squared error of rounding and clipping, so the winner is nearly always `mse`, or `max` if both
agree; among equal candidates `max` wins, then the first by name. The table names the winner of every tensor. The best
range for a single tensor is not always the best for the network: `auto` measures at the network's output instead.
"""

from __future__ import annotations

from typing import Final

import calibrators
from calibrators.calibrator import Calibrator, Grid, Range
from calibrators.histogram import Histogram
from calibrators.noise import noise_of


def best(histogram: Histogram, grid: Grid) -> Range:
    """Return the range with the smallest mean squared error among all calibrators that compete."""
    noise = noise_of(histogram, grid)
    rivals = [calibrators.load(name) for name in calibrators.names() if name != "best"]
    competing = sorted((method for method in rivals if method.competes), key=lambda method: method.needs_bins)
    return min((method(histogram, grid) for method in competing), key=lambda range_: noise(range_.amax))


PLUGIN: Final = Calibrator(choose=best, competes=False)
