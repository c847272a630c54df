"""Low precision for NVIDIA TensorRT by explicit Q/DQ nodes: place, calibrate, insert, build, audit, compare, report.

`qdqtool.run` does everything; the other calls are its steps. `help(qdqtool.api)` shows how they fit together. Mistakes raise a
`qdqtool.QdqError` (`help(qdqtool.errors)`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from qdqtool._version import __version__ as __version__
from qdqtool.errors import Interrupted as Interrupted
from qdqtool.errors import QdqError as QdqError

# onnxruntime leaves a device id in the user's cache as soon as it is imported; a user's own setting counts.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from qdqtool.api import (
        audit,
        build,
        calibrate,
        compare,
        convert,
        diff,
        fix,
        insert,
        lint,
        parse_log,
        place,
        predict,
        quantize,
        read_engine,
        repair,
        run,
        sensitivity,
        sweep,
    )

__all__ = [
    "audit",
    "build",
    "calibrate",
    "compare",
    "convert",
    "diff",
    "fix",
    "insert",
    "lint",
    "parse_log",
    "place",
    "predict",
    "quantize",
    "read_engine",
    "repair",
    "run",
    "sensitivity",
    "sweep",
]


def __getattr__(name: str) -> object:
    """Import the code of an API function only when it is used, so that `import qdqtool` stays fast."""
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("qdqtool.api"), name)
    raise AttributeError(f"module 'qdqtool' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the API functions."""
    return [*__all__, "__all__", "__doc__", "__file__", "__name__", "__path__", "__version__"]
