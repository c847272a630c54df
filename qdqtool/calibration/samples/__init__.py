"""Model inputs from wherever a person has them: arrays, images, Polygraphy files, Python code, or random numbers."""

from qdqtool.calibration.samples.batches import batches
from qdqtool.calibration.samples.opening import open_samples
from qdqtool.calibration.samples.spec import SampleSpec

__all__ = ["SampleSpec", "batches", "open_samples"]
