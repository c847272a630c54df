"""Model inputs from any source: arrays, images, Polygraphy files, Python code, or random numbers."""

from qdqtool.calibration.samples.objects import SampleObjects, sample_objects
from qdqtool.calibration.samples.opening import SampleInput, Samples, batches, no_samples, open_samples

__all__ = [
    "SampleInput",
    "SampleObjects",
    "Samples",
    "batches",
    "no_samples",
    "open_samples",
    "sample_objects",
]
