"""Two thirds of the largest magnitude.

For tensors whose largest values are known to be noise. Use it as any other method:

    qdqtool calibrate model.onnx --samples calibration.npz --method two_thirds
"""

from calibrators import Calibrator, Grid, Histogram, Range


def two_thirds(histogram: Histogram, grid: Grid) -> Range:
    """The range is symmetric: `amax` is a magnitude, in the unit of the tensor. `grid` says how many steps it has."""
    del grid
    return Range(amax=histogram.amax * 2 / 3, method="two_thirds")


PLUGIN = Calibrator(choose=two_thirds, needs_bins=False)
