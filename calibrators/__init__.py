"""Arithmetic of calibration: numbers in, a range out. Knows no model and no file.

Every file here that is not named in `NOT_PLUGINS` is a calibrator: a pure function `Histogram -> Range`.
"""

from __future__ import annotations

from typing import Final

NOT_PLUGINS: Final = frozenset(
    {
        "compiled",
        "device",
        "error",
        "feeds",
        "histogram",
        "kernels",
        "noise",
        "ranges",
        "tensorrt",
        "trouble",
        "weights",
    }
)
"""Modules of this package that are not calibrators."""
