"""INT8 for NVIDIA TensorRT by explicit Q/DQ nodes: place, calibrate, insert, build, audit, compare, report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qdqtool._version import __version__ as __version__

if TYPE_CHECKING:
    from qdqtool.api import audit, build, compare, convert, parse_log, place, quantize, run

__all__ = ["audit", "build", "compare", "convert", "parse_log", "place", "quantize", "run"]


def __getattr__(name: str) -> Any:
    """Open the rooms behind a call only when the call is used, so that `import qdqtool` stays quick."""
    if name in __all__:
        return getattr(import_module("qdqtool.api"), name)
    raise AttributeError(f"module 'qdqtool' has no attribute {name!r}")
