"""Types and shapes of tensors, including a type for everything unrecognised."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

# --- dtypes ----------------------------------------------------------------------------------------------------------
# Data types of tensors, including a value for unrecognised types.


class DType(str, Enum):
    """A tensor's element type; unrecognised types are `UNKNOWN`, never a guess."""

    FLOAT32 = "fp32"
    FLOAT16 = "fp16"
    BFLOAT16 = "bf16"
    FLOAT8 = "fp8"
    """E4M3 without infinities (largest value 448): what "FP8" means in TensorRT."""
    FLOAT8_E5M2 = "fp8_e5m2"
    FLOAT8_E8M0 = "fp8_e8m0"
    """Powers of two only: the type of MX block scales."""
    FLOAT4 = "fp4"
    FLOAT64 = "fp64"
    INT4 = "int4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    STRING = "string"
    UNKNOWN = "unknown"

    @property
    def bits(self) -> int | None:
        """Bits per element; None if unknown."""
        return _BITS.get(self)

    @property
    def is_float(self) -> bool:
        """True if values of this type are floating-point numbers of 16 bits or more."""
        return self in _FLOATS

    @property
    def is_quantized(self) -> bool:
        """True if a tensor of this type was quantized: eight bits or fewer, with a scale."""
        return self in _QUANTIZED

    @classmethod
    def parse(cls, word: str) -> DType:
        """Return the type that `word` means in ONNX, numpy or any TensorRT release; UNKNOWN for other words."""
        return _WORDS.get(word.strip().lower(), cls.UNKNOWN)

    def __str__(self) -> str:
        return self.value


QUANTIZED_FROM = frozenset({DType.FLOAT32, DType.FLOAT16, DType.UNKNOWN})
"""Types of values that this tool can quantize; an unknown type is assumed to be one of them."""
_QUANTIZED = frozenset({DType.INT8, DType.INT4, DType.FLOAT8, DType.FLOAT8_E5M2, DType.FLOAT4})
_FLOATS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.FLOAT64})
_BITS = {
    DType.FLOAT64: 64,
    DType.INT64: 64,
    DType.FLOAT32: 32,
    DType.INT32: 32,
    DType.FLOAT16: 16,
    DType.BFLOAT16: 16,
    DType.INT16: 16,
    DType.FLOAT8: 8,
    DType.FLOAT8_E5M2: 8,
    DType.FLOAT8_E8M0: 8,
    DType.INT8: 8,
    DType.UINT8: 8,
    DType.BOOL: 8,
    DType.FLOAT4: 4,
    DType.INT4: 4,
}
_SPELLINGS = {
    DType.FLOAT32: "float float32 fp32 f32",
    DType.FLOAT16: "half float16 fp16 f16",
    DType.BFLOAT16: "bfloat16 bf16",
    DType.FLOAT8: "fp8 float8 fp8_e4m3 fp8e4m3 fp8e4m3fn float8e4m3fn float8_e4m3fn e4m3",
    DType.FLOAT8_E5M2: "fp8_e5m2 fp8e5m2 float8e5m2 float8_e5m2 e5m2",
    DType.FLOAT8_E8M0: "fp8_e8m0 fp8e8m0 ue8m0 fp8ue8m0 fp8_ue8m0 float8e8m0 float8_e8m0fnu e8m0",
    DType.FLOAT4: "fp4 fp4e2m1 fp4_e2m1 e2m1 float4e2m1 float4_e2m1fn",
    DType.FLOAT64: "double float64 fp64",
    DType.INT4: "int4",
    DType.INT8: "int8 i8",
    DType.UINT8: "uint8 u8",
    DType.INT16: "int16",
    DType.INT32: "int32 i32",
    DType.INT64: "int64 i64",
    DType.BOOL: "bool",
    DType.STRING: "string object",
}
_WORDS = {word: dtype for dtype, words in _SPELLINGS.items() for word in words.split()}


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """Name, type and shape of a tensor.

    Attributes:
        name: the tensor's name in the model.
        dtype: element type.
        shape: one entry per dimension, an int or the name of a symbolic dimension ("?" when unnamed);
            None when even the rank is unknown.
    """

    name: str
    dtype: DType = DType.UNKNOWN
    shape: tuple[int | str, ...] | None = None

    @property
    def is_static(self) -> bool:
        """True if every dimension is a number."""
        return self.shape is not None and all(isinstance(dim, int) for dim in self.shape)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Return whether a tensor of this shape fits; symbolic dimensions may have any length."""
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            isinstance(dim, str) or dim == length for dim, length in zip(self.shape, shape, strict=True)
        )

    @property
    def elements(self) -> int | None:
        """Number of elements; None if a dimension is unknown."""
        if self.shape is None:
            return None
        dims = [dim for dim in self.shape if isinstance(dim, int)]
        return prod(dims) if len(dims) == len(self.shape) else None
