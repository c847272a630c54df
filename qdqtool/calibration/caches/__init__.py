"""Calibration caches of TensorRT and calibration tables of onnxruntime: read, written, compared, fixed, converted."""

from qdqtool.calibration.caches.contents import Cache, Entry
from qdqtool.calibration.caches.files import read_cache, write_cache

__all__ = ["Cache", "Entry", "read_cache", "write_cache"]
