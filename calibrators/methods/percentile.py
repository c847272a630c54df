"""The magnitude below which 99.99 % of all values are.

Clips a fixed share of the values, whatever their size: one of ten thousand. Robust against single outliers; on
tensors whose large values are rare but matter it clips too much. `percentile:99.9` asks for another share.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from calibrators.calibrator import CalibrationDataError, Calibrator, Grid, Range
from calibrators.histogram import Histogram


def percentile(histogram: Histogram, grid: Grid, percent: float = 99.99) -> Range:  # noqa: ARG001 -- a share is one in every format
    """Return the percentile of the magnitudes, linear inside a bin, at most the maximum.

    Raises:
        CalibrationDataError: `percent` is outside (0, 100].
    """
    if not 0 < percent <= 100:
        raise CalibrationDataError(f"a percentile of {percent} is outside (0, 100]")
    if histogram.exponent is None:
        return Range(amax=0.0, method="percentile")
    below = np.cumsum(histogram.counts)
    rank = histogram.total * percent / 100
    index = int(np.searchsorted(below, rank))
    before = int(below[index - 1]) if index else 0
    inside = (rank - before) / int(histogram.counts[index])
    return Range(amax=min((index + inside) * histogram.width, histogram.amax), method="percentile")


PLUGIN: Final = Calibrator(choose=percentile)
