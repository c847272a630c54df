"""Searches over configurations for the best accuracy at the best speed."""

from qdqtool.workflows.sweep.bench import SweepOrder
from qdqtool.workflows.sweep.run import sweep

__all__ = ["SweepOrder", "sweep"]
