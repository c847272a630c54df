"""A calibrator that always fails."""

from calibrators import Calibrator, Grid, Histogram, Range


def fail(histogram: Histogram, grid: Grid) -> Range:
    """Raise."""
    raise ZeroDivisionError("the example divides by zero")


PLUGIN = Calibrator(choose=fail)
