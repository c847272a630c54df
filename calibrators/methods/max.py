"""The largest magnitude.

Nothing is clipped, so a single outlier makes all steps coarse. The right choice for tensors with a hard bound (images,
sigmoid, softmax), for transformers and for weights; TensorRT calls it MinMaxCalibration.
"""

from __future__ import annotations

from typing import Final

from calibrators.calibrator import Calibrator, Grid, Range
from calibrators.histogram import Histogram


def largest(histogram: Histogram, grid: Grid) -> Range:  # noqa: ARG001 -- the maximum is that of every format
    """Return the exact maximum; needs no bins."""
    return Range(amax=histogram.amax, method="max")


PLUGIN: Final = Calibrator(choose=largest, needs_bins=False)
