"""The magnitudes that each number format can store."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np

from calibrators.grid import Grid, grid_of
from qdqtool.core.dtypes import DType
from qdqtool.core.quant_format import QuantFormat

_CODES: Final = {
    DType.FLOAT8: "float8_e4m3fn",
    DType.FLOAT8_E5M2: "float8_e5m2",
    DType.FLOAT4: "float4_e2m1fn",
}
"""What ml_dtypes, which reads them for onnx, calls the float formats."""


@cache
def grid_for(wanted: QuantFormat) -> Grid:
    """The grid of a format; of integers the magnitudes that positive and negative numbers share."""
    if wanted.is_integer:
        return grid_of(np.arange(wanted.qmax + 1))
    import ml_dtypes

    kind: Any = np.dtype(getattr(ml_dtypes, _CODES[wanted.dtype]))
    codes = np.arange(1 << (wanted.dtype.bits or 8), dtype=np.uint8).view(kind).astype(np.float64)
    return grid_of(codes[np.isfinite(codes)])
