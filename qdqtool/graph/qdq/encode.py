"""Arithmetic of number formats on arrays: scales that can be stored, values to stored values and back.

Rounding is that of ONNX QuantizeLinear: to the nearest, ties to even, saturating. Source: ONNX operator QuantizeLinear
(opset 23); for block scales the OCP Microscaling specification 1.0 and NVIDIA's description of NVFP4.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from qdqtool.core.grids import get_storage_type
from qdqtool.core.tensors import DType, QuantFormat

# --- scales ----------------------------------------------------------------------------------------------------------
# Makes scales that can be stored: positive normal numbers that are exact in their type.


SMALLEST = float(np.finfo(np.float32).tiny)
"""Smallest normal float32, about 1.2e-38; smaller scales lose digits."""
SMALLEST_HALF = 2.0**-20
"""Smallest FP16 scale, about 9.5e-7: a subnormal number that keeps four digits of its mantissa."""
LARGEST_HALF = float(np.finfo(np.float16).max)
# BF16 has an exponent of 8 bits, like FP32, and a fraction of 7 bits.
_LARGEST_BRAIN = (2.0 - 2.0**-7) * 2.0**127


def is_number(value: NDArray[Any]) -> bool:
    """Return True if an array holds real numbers; strings and complex numbers are neither scales nor zero points."""
    return value.dtype.kind not in "OSUc"


def is_zero(value: NDArray[Any]) -> bool:
    """Return True if every value is the number 0, as zero points must be."""
    return is_number(value) and not np.asarray(value, np.float32).any()


def storable(scale: NDArray[Any], kind: Any) -> NDArray[np.float32]:
    """Return the scale as float32, rounded so that the NumPy type `kind` represents it exactly."""
    return storable_as(scale, DType.parse(np.dtype(kind).name))


def storable_as(scale: NDArray[Any], dtype: DType) -> NDArray[np.float32]:
    """Return the scale as float32, rounded up to values that this float type represents exactly.

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
    """Return `scale` with one entry made slightly larger; each `number` gives a different result.

    Number 1 has its first scale one step larger, number 2 its second scale, and so on; with more numbers than scales,
    two steps.
    """
    here = storable_as(scale, dtype).copy()
    rounds, place = divmod(number - 1, here.size)
    flat = here.reshape(-1)
    for _ in range(rounds + 1):
        flat[place] = storable_as(np.nextafter(flat[place : place + 1], np.float32(np.inf)), dtype)[0]
    return here


def a_step_above(scale: NDArray[Any], dtype: DType) -> NDArray[np.float32]:
    """Return the next larger scales of `dtype` if they give equal INT8 values; otherwise `scale` itself.

    An integer q with the smaller scale is q * (1 - step) with the larger scale. This rounds to q if 128 steps are
    less than a half. BF16 has no such scales, nor has FP16 far below its normal numbers.
    """
    here = storable_as(scale, dtype)
    above = storable_as(np.nextafter(here, np.float32(np.inf)), dtype)
    is_equal = (above - here) * np.float32(256.0) < here
    return np.where(is_equal, above, here).astype(np.float32)


# --- encode ----------------------------------------------------------------------------------------------------------


_SMALLEST_BLOCK_SCALE: Final = 2.0**-9
"""Smallest positive E4M3 number. TensorRT rejects a block scale of zero, also for blocks of zeros."""
_PIECE: Final = 2**16
"""Number of values whose errors are summed at once: 256 KiB."""
_FRACTIONS: Final = tuple(float(fraction) for fraction in np.linspace(1.0, 0.5, 21))
"""Shares of a block's largest magnitude that the search for the smallest squared error tries."""


def encode(
    value: NDArray[Any], scale: NDArray[Any], format_: QuantFormat, axis: int | None, block: int | None = None
) -> NDArray[Any]:
    """Return the stored values that QuantizeLinear makes of `value`, in the format's NumPy type and the shape of `value`.

    Args:
        value: any float array.
        scale: a scalar, one value per channel along `axis`, or the shape of `value` divided by `block` along `axis`.
        format_: how values are stored.
        axis: as above; None for a scalar.
        block: values along `axis` that share a scale; None without blocks.
    """
    folded = _fold_blocks(value.astype(np.float32), axis, block)
    steps = folded / _facing(scale.astype(np.float32), folded.ndim, axis, block)
    if format_.is_integer:
        steps = np.rint(steps)
    kind = get_storage_type(format_.dtype)
    stored: NDArray[Any] = np.clip(steps, format_.qmin, format_.qmax).astype(kind).reshape(value.shape)
    return stored


def decode(
    stored: NDArray[Any],
    scale: NDArray[Any],
    axis: int | None,
    block: int | None = None,
    float_type: DTypeLike = np.float32,
) -> NDArray[Any]:
    """Return the values that stored values represent, in a float type; the reverse of `encode` with zero point 0.

    Values beyond the float type become infinite, as in a runtime.
    """
    folded = _fold_blocks(stored.astype(np.float32), axis, block)
    facing = _facing(scale.astype(np.float32), folded.ndim, axis, block)
    # a file may contain infinite scales, which are reported elsewhere
    with np.errstate(invalid="ignore", over="ignore"):
        values: NDArray[Any] = (folded * facing).reshape(stored.shape).astype(float_type, copy=False)
    return values


def block_scales(
    value: NDArray[Any],
    format_: QuantFormat,
    axis: int,
    block: int,
    *,
    search: bool = False,
    energy: NDArray[Any] | None = None,
) -> tuple[NDArray[np.float32], float | None]:
    """Return the scale of every block of a constant, and the global scale of formats with two levels.

    Args:
        value: the constant; `block` divides its length along `axis`.
        format_: a format with blocks.
        axis: the axis that blocks divide.
        block: values that share a scale.
        search: whether to clip a block if its squared error becomes smaller.
        energy: how much the squared error of each value counts; None if all count alike.
    """
    folded = _fold_blocks(np.asarray(value, np.float32), axis, block)
    amax = np.abs(folded).max(axis=axis + 1)
    global_scale = None
    if format_.two_level:
        # For very small weights the scale is not a normal number, and they would be divided by zero.
        largest = np.float32((float(amax.max()) or 1.0) / (format_.qmax * format_.scale_limit))
        global_scale = float(np.maximum(largest, np.finfo(np.float32).tiny))
    best = _storable(amax, format_, global_scale)
    if search:
        counts = None if energy is None else _fold_blocks(energy, axis, block)
        least = _errors(folded, best, format_, axis, global_scale, counts)
        for fraction in _FRACTIONS[1:]:
            tried = _storable(amax * np.float32(fraction), format_, global_scale)
            errors = _errors(folded, tried, format_, axis, global_scale, counts)
            best = np.where(errors < least, tried, best)
            least = np.minimum(errors, least)
    return best.astype(np.float32), global_scale


def effective(scale: NDArray[Any], global_scale: float | None) -> NDArray[np.float32]:
    """Return block scales times the global scale: equivalent scales of one level."""
    return scale.astype(np.float32) * np.float32(1.0 if global_scale is None else global_scale)


def _storable(amax: NDArray[Any], format_: QuantFormat, global_scale: float | None) -> NDArray[np.float32]:
    """Return scales of blocks with these magnitudes that the format's scale type represents exactly."""
    exact = amax / np.float32(format_.qmax)
    if format_.scale_dtype is DType.FLOAT8_E8M0:
        # A power of two, rounded up, so that no value of the block is clipped.
        tiny = np.float32(2.0**-126)
        return np.exp2(np.ceil(np.log2(np.maximum(exact, tiny)))).astype(np.float32)
    if global_scale is not None:
        low = np.clip(exact / np.float32(global_scale), _SMALLEST_BLOCK_SCALE, format_.scale_limit)
        return low.astype(get_storage_type(DType.FLOAT8)).astype(np.float32)
    filler = exact.max() or np.float32(1.0)
    return np.where(exact > 0, exact, filler).astype(np.float32)


def _errors(
    folded: NDArray[Any],
    scale: NDArray[Any],
    format_: QuantFormat,
    axis: int,
    global_scale: float | None,
    energy: NDArray[Any] | None,
) -> NDArray[np.float32]:
    """Return the squared rounding error of every block, weighted by the energy of each value."""
    facing = np.expand_dims(effective(scale, global_scale), axis + 1)
    missed = np.empty(scale.shape, np.float32)
    blocks = max(1, _PIECE * folded.shape[axis] // max(folded.size, 1))
    for first in range(0, folded.shape[axis], blocks):
        piece = (slice(None),) * axis + (slice(first, first + blocks),)
        values, step = folded[piece], facing[piece]
        error = values / step
        if format_.is_integer:
            np.rint(error, out=error)
        np.clip(error, format_.qmin, format_.qmax, out=error)
        if not format_.is_integer:
            error = error.astype(get_storage_type(format_.dtype)).astype(np.float32)
        error *= step
        error -= values
        np.square(error, out=error)
        if energy is not None:
            error *= np.broadcast_to(energy, folded.shape)[piece]
        error.sum(axis=axis + 1, out=missed[piece])
    return missed


def _fold_blocks(value: NDArray[Any], axis: int | None, block: int | None) -> NDArray[Any]:
    """Reshape `value` so that the values of a block have a separate axis, directly after `axis`."""
    if block is None or axis is None:
        return value
    shape = value.shape
    return value.reshape(*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])


def _facing(scale: NDArray[Any], rank: int, axis: int | None, block: int | None) -> NDArray[Any]:
    """Reshape block scales so that they broadcast to folded values."""
    if axis is None or scale.ndim == 0:
        return scale.reshape(())
    if block is not None:
        return np.expand_dims(scale, axis + 1)
    return scale.reshape([-1 if dim == axis else 1 for dim in range(rank)])
