"""Half of the largest magnitude.

Clips generously; it is here to show what a calibrator of another distribution looks like.
"""

from calibrators import Calibrator, Grid, Histogram, Range


def half(histogram: Histogram, grid: Grid) -> Range:
    """Half the maximum."""
    return Range(amax=histogram.amax / 2, method="half")


PLUGIN = Calibrator(choose=half, needs_bins=False)
