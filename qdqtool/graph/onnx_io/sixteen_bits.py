"""FP32 values as the bits of FP16 or BF16, section by section: a large weight needs no copies of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_SECTION: Final = 1 << 20
"""Elements that are converted at a time; what that takes is some 32 MiB."""


class Reach(NamedTuple):
    """The largest finite and the smallest positive number of a type."""

    largest: float
    smallest: float


REACH: Final = {
    int(onnx.TensorProto.FLOAT16): Reach(65504.0, 2.0**-24),
    int(onnx.TensorProto.BFLOAT16): Reach((2.0 - 2.0**-7) * 2.0**127, 2.0**-133),
}
"""By ONNX's number for the type."""


def sections(value: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The values in their order, some at a time; an empty array has one empty section."""
    flat = value.reshape(-1)
    yield from (flat[begin : begin + _SECTION] for begin in range(0, max(flat.size, 1), _SECTION))


def bits(value: NDArray[Any], element: int) -> NDArray[np.uint16]:
    """The values as little-endian bits of the type `element`, each rounded to nearest even.

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
