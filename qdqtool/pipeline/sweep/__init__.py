"""Searches over configurations for the best accuracy and the best speed."""

from qdqtool.pipeline.sweep.context import SweepRequest
from qdqtool.pipeline.sweep.run import sweep

__all__ = ["SweepRequest", "sweep"]
