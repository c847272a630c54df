"""Converts FP32 values to the bits of FP16 or BF16 in sections, so that a large weight needs no copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_SECTION: Final = 1 << 20
"""Number of elements converted at a time, which takes about 32 MiB."""


class Reach(NamedTuple):
    """Largest finite and smallest positive number of a type."""

    largest: float
    smallest: float


REACH: Final = {
    int(onnx.TensorProto.FLOAT16): Reach(65504.0, 2.0**-24),
    int(onnx.TensorProto.BFLOAT16): Reach((2.0 - 2.0**-7) * 2.0**127, 2.0**-133),
}
"""Reach by ONNX's number of the type."""


def sections(value: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the values in order, in sections; an empty array has one empty section."""
    flat = value.reshape(-1)
    yield from (flat[begin : begin + _SECTION] for begin in range(0, max(flat.size, 1), _SECTION))


def bits(value: NDArray[Any], element: int) -> NDArray[np.uint16]:
    """Return the values as little-endian bits of the type `element`, each rounded to nearest even.

    What is too large becomes the largest number, what would become zero the smallest, so that an epsilon still
    protects its division; infinities and NaN stay.
    """
    found = np.empty(value.size, "<u2")
    begin = 0
    for section in sections(value):
        found[begin : begin + section.size] = _rounded(section.astype(np.float32), element)
        begin += section.size
    return found.reshape(value.shape)


def _rounded(wide: NDArray[np.float32], element: int) -> NDArray[np.uint16]:
    reach = REACH[element]
    bounded = np.where(np.isfinite(wide), np.clip(wide, -reach.largest, reach.largest), wide)
    lost = (bounded != 0) & (np.abs(bounded) < reach.smallest)
    value = np.where(lost, np.copysign(reach.smallest, bounded), bounded).astype(np.float32)
    if element == onnx.TensorProto.FLOAT16:
        return value.astype(np.float16).view(np.uint16)
    whole = value.view(np.uint32)
    rounded = (whole + np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FC0), rounded).astype(np.uint16)
