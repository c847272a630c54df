"""The two 16-bit float types: their ranges, and how they store numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray

from qdqtool.core.tensors import DType
from qdqtool.graph.onnx_io.deferred import REACH, bits, content, is_deferred, sections
from qdqtool.graph.sensitive import FloatType

Types = Literal["fp16", "bf16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrow:
    """A float type of 16 bits.

    Attributes:
        dtype: its name.
        element: ONNX's number for it.
        word: ONNX's name of a tensor of this type.
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
        """Properties of this 16-bit type that decide which nodes must stay FP32."""
        return FloatType(name=str(self.dtype), exact=self.exact, is_short=self.dtype is DType.FLOAT16)


NARROW: dict[Types, Narrow] = {
    "fp16": Narrow(
        dtype=DType.FLOAT16,
        element=onnx.TensorProto.FLOAT16,
        word="tensor(float16)",
        largest=REACH[onnx.TensorProto.FLOAT16].largest,
        normal=2.0**-14,
        smallest=REACH[onnx.TensorProto.FLOAT16].smallest,
        exact=2.0**11,
        opset=13,
        scales=19,
    ),
    "bf16": Narrow(
        dtype=DType.BFLOAT16,
        element=onnx.TensorProto.BFLOAT16,
        word="tensor(bfloat16)",
        largest=REACH[onnx.TensorProto.BFLOAT16].largest,
        normal=2.0**-126,
        smallest=REACH[onnx.TensorProto.BFLOAT16].smallest,
        exact=2.0**8,
        opset=22,
        scales=22,
    ),
}


def fits(narrow: Narrow, value: NDArray[Any]) -> bool:
    """Return True if every finite value is within the range of the 16-bit type."""
    return all(_largest(section[np.isfinite(section)]) <= narrow.largest for section in sections(value))


def is_faint(narrow: Narrow, value: NDArray[Any]) -> bool:
    """Return True if a tensor's largest magnitude is so small that the 16-bit type loses its digits."""
    used = max(_largest(section[np.isfinite(section)]) for section in sections(value))
    return 0 < used < narrow.normal


def _largest(value: NDArray[Any]) -> float:
    return float(np.abs(value).max()) if value.size else 0.0


def store_constant(narrow: Narrow, name: str, value: NDArray[Any]) -> onnx.TensorProto:
    """Return the values as a constant of the 16-bit type, each rounded to nearest even."""
    wide = np.asarray(value)
    raw = bits(wide, narrow.element).tobytes()
    return onnx.TensorProto(name=name, data_type=narrow.element, dims=wide.shape, raw_data=raw)


def widen_constant(tensor: onnx.TensorProto) -> NDArray[np.float32]:
    """Return the values of a BF16 constant as float32, exactly."""
    if tensor.HasField("raw_data") or is_deferred(tensor):
        halves = np.frombuffer(content(tensor), "<u2")
    else:
        halves = np.array(tensor.int32_data, np.uint16)
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(tuple(tensor.dims))
