"""Model inputs from wherever a person has them: arrays, images, Polygraphy files, Python code, or random numbers."""

from qdqtool.calibration.samples.batches import batches
from qdqtool.calibration.samples.opening import Samples, open_samples

__all__ = ["Samples", "batches", "open_samples"]
