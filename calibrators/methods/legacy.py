"""The quantile of TensorRT's legacy calibrator: the upper edge of the histogram bin that contains it.

IInt8LegacyCalibrator takes the region's maximum from a quantile of the histogram, 0.9999 unless `legacy:0.999` says
otherwise. It exists to repeat old set-ups; for new work use `percentile`, which interpolates inside the bin. Its second
parameter, a regression cut-off, was never documented and is not offered.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from calibrators.calibrator import CalibrationDataError, Calibrator, Grid, Range
from calibrators.histogram import Histogram, coarsen

# The resolution of a range is 1/2048.
BINS: Final = 2048


def legacy(histogram: Histogram, grid: Grid, quantile: float = 0.9999) -> Range:  # noqa: ARG001 -- a quantile is one in every format
    """Return the upper edge of the bin that contains the quantile, in a histogram of at most 2048 bins.

    Raises:
        CalibrationDataError: `quantile` is outside (0, 1].
    """
    if not 0 < quantile <= 1:
        raise CalibrationDataError(f"a quantile of {quantile} is outside (0, 1]")
    counts, width = coarsen(histogram, BINS)
    index = int(np.searchsorted(np.cumsum(counts), histogram.total * quantile))
    return Range(amax=min((index + 1) * width, histogram.amax), method="legacy")


PLUGIN: Final = Calibrator(choose=legacy, competes=False)
