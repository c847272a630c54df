"""Calibration caches of TensorRT and calibration tables of onnxruntime: read, written, compared, fixed, converted."""

from qdqtool.calibration.caches.cache import Cache, Entry
from qdqtool.calibration.caches.reading import read_cache
from qdqtool.calibration.caches.writing import write_cache

__all__ = ["Cache", "Entry", "read_cache", "write_cache"]
