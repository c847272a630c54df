"""Makes scales that can be stored: positive, normal numbers, exact in the type they are stored in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALLEST = float(np.finfo(np.float32).tiny)
"""Smallest normal float32, about 1.2e-38: below it a scale loses its digits."""
SMALLEST_HALF = 2.0**-20
"""About 9.5e-7, a subnormal FP16 with four digits of its mantissa left."""
LARGEST_HALF = float(np.finfo(np.float16).max)


def storable(scale: NDArray[Any], *, half: bool) -> NDArray[np.float32]:
    """`scale` as float32; with `half` each value is rounded up to one that FP16 holds exactly.

    Rounding up means that no value is clipped which the exact scale would keep. Because Q and DQ use the same
    rounded scale, a coarse scale costs resolution but never a wrong gain.
    """
    if not half:
        return np.maximum(np.asarray(scale, np.float32), np.float32(SMALLEST))
    bounded = np.clip(np.asarray(scale, np.float32), SMALLEST_HALF, LARGEST_HALF)
    near = bounded.astype(np.float16)
    with np.errstate(over="ignore"):
        up = np.nextafter(near, np.float16(np.inf))
    result = np.where(near.astype(np.float32) < bounded, up, near)
    return np.minimum(result.astype(np.float32), np.float32(LARGEST_HALF))
