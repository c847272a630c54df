"""The two float types of 16 bits: what they hold, and how numbers are stored in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx

from qdqtool.core.dtypes import DType
from qdqtool.graph.onnx_io.deferred import content, is_deferred
from qdqtool.graph.sensitive import FloatType

if TYPE_CHECKING:
    from numpy.typing import NDArray

Types = Literal["fp16", "bf16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrow:
    """A float type of 16 bits.

    Attributes:
        dtype: its name.
        element: ONNX's number for it.
        word: how ONNX spells a tensor of it.
        largest: the largest finite number.
        normal: the smallest number with all its digits.
        smallest: the smallest positive number.
        exact: the largest integer up to which it holds all integers.
        opset: the first opset whose Conv and pooling take it.
        scales: the first opset whose Q/DQ take it.
    """

    dtype: DType
    element: int
    word: str
    largest: float
    normal: float
    smallest: float
    exact: float
    opset: int
    scales: int

    @property
    def float_type(self) -> FloatType:
        """What decides which nodes are sensitive to it."""
        return FloatType(name=str(self.dtype), exact=self.exact, is_short=self.dtype is DType.FLOAT16)


NARROW: dict[Types, Narrow] = {
    "fp16": Narrow(
        dtype=DType.FLOAT16,
        element=onnx.TensorProto.FLOAT16,
        word="tensor(float16)",
        largest=65504.0,
        normal=2.0**-14,
        smallest=2.0**-24,
        exact=2.0**11,
        opset=13,
        scales=19,
    ),
    "bf16": Narrow(
        dtype=DType.BFLOAT16,
        element=onnx.TensorProto.BFLOAT16,
        word="tensor(bfloat16)",
        largest=(2.0 - 2.0**-7) * 2.0**127,
        normal=2.0**-126,
        smallest=2.0**-133,
        exact=2.0**8,
        opset=22,
        scales=22,
    ),
}


def fits(narrow: Narrow, value: NDArray[Any]) -> bool:
    """Whether every finite number is within reach."""
    finite = value[np.isfinite(value)]
    return not finite.size or float(np.abs(finite).max()) <= narrow.largest


def is_faint(narrow: Narrow, value: NDArray[Any]) -> bool:
    """Whether there are numbers besides 0, and all of them are too small to keep their digits."""
    used = np.abs(value[np.isfinite(value) & (value != 0)])
    return bool(used.size) and float(used.max()) < narrow.normal


def stored(narrow: Narrow, name: str, value: NDArray[Any]) -> onnx.TensorProto:
    """The values as a constant of the type, each rounded to nearest even.

    What is too large becomes the largest number, what would become zero the smallest, so that an epsilon still
    protects its division; infinities and NaN stay.
    """
    wide = np.asarray(value, np.float32)
    bounded = np.where(np.isfinite(wide), np.clip(wide, -narrow.largest, narrow.largest), wide)
    lost = (bounded != 0) & (np.abs(bounded) < narrow.smallest)
    bits = _bits(narrow, np.where(lost, np.copysign(narrow.smallest, bounded), bounded).astype(np.float32))
    return onnx.TensorProto(
        name=name, data_type=narrow.element, dims=wide.shape, raw_data=bits.astype("<u2").tobytes()
    )


def _bits(narrow: Narrow, value: NDArray[np.float32]) -> NDArray[np.uint16]:
    if narrow.dtype is DType.FLOAT16:
        return value.astype(np.float16).view(np.uint16)
    whole = value.view(np.uint32)
    rounded = (whole + np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FC0), rounded).astype(np.uint16)


def widened(tensor: onnx.TensorProto) -> NDArray[np.float32]:
    """The values of a BF16 constant as float32, exactly."""
    if tensor.HasField("raw_data") or is_deferred(tensor):
        bits = np.frombuffer(content(tensor), "<u2")
    else:
        bits = np.array(tensor.int32_data, np.uint16)
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(tuple(tensor.dims))
