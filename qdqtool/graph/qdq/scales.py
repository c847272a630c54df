"""Makes scales that can be stored: positive, normal numbers, exact in the type that stores them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.tensors import DType

if TYPE_CHECKING:
    from numpy.typing import NDArray

SMALLEST = float(np.finfo(np.float32).tiny)
"""Smallest normal float32, about 1.2e-38; smaller scales lose digits."""
SMALLEST_HALF = 2.0**-20
"""Smallest FP16 scale, about 9.5e-7: a subnormal number that keeps four digits of its mantissa."""
LARGEST_HALF = float(np.finfo(np.float16).max)
# BF16: eight bits of exponent as FP32, seven of fraction.
_LARGEST_BRAIN = (2.0 - 2.0**-7) * 2.0**127


def is_number(value: NDArray[Any]) -> bool:
    """Return True if an array holds real numbers; strings and complex numbers are neither scales nor zero points."""
    return value.dtype.kind not in "OSUc"


def is_zero(value: NDArray[Any]) -> bool:
    """Return True if every value is the number 0, as zero points must be."""
    return is_number(value) and not np.asarray(value, np.float32).any()


def storable(scale: NDArray[Any], *, half: bool) -> NDArray[np.float32]:
    """Return `scale` as float32; with `half`, each value is one that FP16 represents exactly."""
    return storable_as(scale, DType.FLOAT16 if half else DType.FLOAT32)


def storable_as(scale: NDArray[Any], dtype: DType) -> NDArray[np.float32]:
    """Return `scale` as float32, each value rounded up to one that FP32, FP16 or BF16 represents exactly.

    Rounding up means that no value is clipped which the exact scale would keep. Because Q and DQ use the same
    rounded scale, a coarse scale costs resolution but never a wrong gain.
    """
    wide = np.maximum(np.asarray(scale, np.float32), np.float32(SMALLEST))
    if dtype is DType.BFLOAT16:
        up = (wide.view(np.uint32) + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)
        return np.minimum(up.view(np.float32), np.float32(_LARGEST_BRAIN))
    if dtype is not DType.FLOAT16:
        return wide
    bounded = np.clip(wide, SMALLEST_HALF, LARGEST_HALF)
    near = bounded.astype(np.float16)
    with np.errstate(over="ignore"):
        up_half = np.nextafter(near, np.float16(np.inf))
    result = np.where(near.astype(np.float32) < bounded, up_half, near)
    return np.minimum(result.astype(np.float32), np.float32(LARGEST_HALF))


def made_distinct(scale: NDArray[Any], dtype: DType, number: int) -> NDArray[np.float32]:
    """Return scales that differ from `scale` and from those of every other `number`, by the smallest possible steps.

    Copy 1 has the first scale one step larger, copy 2 the second, and so on; with more copies than scales two steps.
    """
    here = storable_as(scale, dtype).copy()
    rounds, place = divmod(number - 1, here.size)
    flat = here.reshape(-1)
    for _ in range(rounds + 1):
        flat[place] = storable_as(np.nextafter(flat[place : place + 1], np.float32(np.inf)), dtype)[0]
    return here


def a_step_above(scale: NDArray[Any], dtype: DType) -> NDArray[np.float32]:
    """Return the next larger scales of `dtype` if they give equal INT8 values; otherwise `scale` itself.

    An integer q of one scale is q * (1 - step) of the other, which rounds to q as long as 128 steps are less than a
    half. BF16 has no such scales, nor has FP16 far below its normal numbers.
    """
    here = storable_as(scale, dtype)
    above = storable_as(np.nextafter(here, np.float32(np.inf)), dtype)
    same = (above - here) * np.float32(256.0) < here
    return np.where(same, above, here).astype(np.float32)
