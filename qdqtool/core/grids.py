"""The magnitudes that each number format can store."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np

from calibrators.calibrator import Grid, grid_of
from qdqtool.core.tensors import DType, QuantFormat

_CODES: Final = {
    DType.FLOAT8: "float8_e4m3fn",
    DType.FLOAT8_E5M2: "float8_e5m2",
    DType.FLOAT4: "float4_e2m1fn",
    DType.FLOAT8_E8M0: "float8_e8m0fnu",
    DType.INT4: "int4",
}
"""Names in ml_dtypes of element types that NumPy does not have."""


@cache
def grid_for(format_: QuantFormat) -> Grid:
    """Return the magnitudes that a format can store. For INT8 they end at 127, as +128 does not exist."""
    if format_.is_integer:
        return grid_of(np.arange(format_.qmax + 1))
    kind: Any = get_storage_type(format_.dtype)
    codes = np.arange(1 << (format_.dtype.bits or 8), dtype=np.uint8).view(kind).astype(np.float64)
    return grid_of(codes[np.isfinite(codes)])


@cache
def get_storage_type(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type of arrays for an element type in which a format stores values."""
    import ml_dtypes

    return np.dtype(np.int8 if dtype is DType.INT8 else getattr(ml_dtypes, _CODES[dtype]))
