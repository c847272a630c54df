"""Types and shapes of tensors, and the number formats that Q/DQ nodes write.

A format is data: code that needs its largest value, its zero point, its block or the first ONNX opset that can hold it
reads it here. Sources: ONNX operator specification (QuantizeLinear-13 to -23), OCP "8-bit Floating Point" and
"Microscaling Formats (MX)" specifications, release notes of TensorRT 9.0, 10.0, 10.8 and 10.12; the architectures that
TensorRT for RTX accepts were measured with builds of release 1.7.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import GetPydanticSchema
from pydantic_core import core_schema

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
    FLOAT8_E4M3FNUZ = "fp8_e4m3fnuz"
    FLOAT8_E5M2FNUZ = "fp8_e5m2fnuz"
    FLOAT6_E2M3 = "fp6_e2m3"
    FLOAT6_E3M2 = "fp6_e3m2"
    FLOAT4 = "fp4"
    FLOAT64 = "fp64"
    COMPLEX64 = "complex64"
    COMPLEX128 = "complex128"
    INT2 = "int2"
    INT4 = "int4"
    UINT2 = "uint2"
    UINT4 = "uint4"
    INT8 = "int8"
    UINT8 = "uint8"
    UINT16 = "uint16"
    UINT32 = "uint32"
    UINT64 = "uint64"
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
    DType.FLOAT8_E4M3FNUZ: 8,
    DType.FLOAT8_E5M2FNUZ: 8,
    DType.FLOAT6_E2M3: 6,
    DType.FLOAT6_E3M2: 6,
    DType.COMPLEX64: 64,
    DType.COMPLEX128: 128,
    DType.INT2: 2,
    DType.UINT2: 2,
    DType.UINT4: 4,
    DType.INT8: 8,
    DType.UINT8: 8,
    DType.UINT16: 16,
    DType.UINT32: 32,
    DType.UINT64: 64,
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
    DType.FLOAT8_E4M3FNUZ: "fp8_e4m3fnuz float8e4m3fnuz float8_e4m3fnuz",
    DType.FLOAT8_E5M2FNUZ: "fp8_e5m2fnuz float8e5m2fnuz float8_e5m2fnuz",
    DType.FLOAT6_E2M3: "fp6_e2m3 float6e2m3 float6_e2m3fn",
    DType.FLOAT6_E3M2: "fp6_e3m2 float6e3m2 float6_e3m2fn",
    DType.COMPLEX64: "complex64",
    DType.COMPLEX128: "complex128",
    DType.INT2: "int2",
    DType.UINT2: "uint2",
    DType.UINT4: "uint4",
    DType.FLOAT4: "fp4 fp4e2m1 fp4_e2m1 e2m1 float4e2m1 float4_e2m1fn",
    DType.FLOAT64: "double float64 fp64",
    DType.INT4: "int4",
    DType.INT8: "int8 i8",
    DType.UINT8: "uint8 u8",
    DType.UINT16: "uint16",
    DType.UINT32: "uint32",
    DType.UINT64: "uint64",
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
        """Return True if `shape` agrees with the shape of this tensor; a symbolic dimension agrees with any length."""
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


# --- number formats of quantization ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantFormat:
    """A low-bit number format: `value = scale * (stored - zero_point)`, always symmetric here.

    Attributes:
        name: its name in recipes, placements and reports.
        dtype: element type of the stored values.
        qmin: smallest stored value.
        qmax: the stored value that a range's magnitude becomes: scale = amax / qmax.
        zero_point: the stored value that represents zero.
        block: values along the reduction axis that share a scale unless a recipe says otherwise; None without blocks.
        blocks: the block lengths that TensorRT takes; () without blocks.
        scale_dtype: type of block scales that are themselves stored in few bits; None if scales have the model's
            float type.
        scale_limit: the largest stored block scale; 0 if scales are plain floats. Scales of two levels are `stored
            scale * global scale`, with global scale = amax / (qmax * scale_limit).
        opset: first ONNX opset whose Q/DQ nodes hold the values in the form that `lower` writes.
        ir_version: first ONNX IR version that has the element type.
        sm: first GPU architecture with a builder that accepts it.
        release: first release of TensorRT that imports it.
    """

    name: str
    dtype: DType
    qmin: float
    qmax: float
    zero_point: float = 0.0
    block: int | None = None
    blocks: tuple[int, ...] = ()
    scale_dtype: DType | None = None
    scale_limit: float = 0.0
    opset: int
    ir_version: int
    sm: int
    release: tuple[int, int]

    @property
    def is_integer(self) -> bool:
        """True if the stored values are integers: then all quantization steps are equal."""
        return self.dtype in {DType.INT8, DType.INT4}

    @property
    def two_level(self) -> bool:
        """True if block scales are stored in a low-bit type and multiplied by one global scale."""
        return self.scale_limit > 0

    def __str__(self) -> str:
        return self.name


INT8: Final = QuantFormat(
    name="int8", dtype=DType.INT8, qmin=-128, qmax=127, opset=13, ir_version=4, sm=75, release=(8, 0)
)
FP8: Final = QuantFormat(
    name="fp8", dtype=DType.FLOAT8, qmin=-448, qmax=448, opset=19, ir_version=9, sm=89, release=(9, 0)
)
FP8_E5M2: Final = QuantFormat(
    name="fp8_e5m2",
    dtype=DType.FLOAT8_E5M2,
    qmin=-57344,
    qmax=57344,
    opset=19,
    ir_version=9,
    sm=0,
    release=(0, 0),
)
"""FP8 E5M2 is valid in ONNX, but TensorRT's parser refuses it (`Failed to import initializer`); no architecture supports it."""
INT4: Final = QuantFormat(
    name="int4",
    dtype=DType.INT4,
    qmin=-8,
    qmax=7,
    block=128,
    blocks=(16, 32, 64, 128),
    opset=21,
    ir_version=10,
    sm=80,
    release=(10, 0),
)
NVFP4: Final = QuantFormat(
    name="nvfp4",
    dtype=DType.FLOAT4,
    qmin=-6,
    qmax=6,
    block=16,
    blocks=(16,),
    scale_dtype=DType.FLOAT8,
    scale_limit=448,
    opset=23,
    ir_version=11,
    sm=100,
    release=(10, 8),
)
MXFP8: Final = QuantFormat(
    name="mxfp8",
    dtype=DType.FLOAT8,
    qmin=-448,
    qmax=448,
    block=32,
    blocks=(32,),
    scale_dtype=DType.FLOAT8_E8M0,
    opset=19,
    ir_version=9,
    sm=100,
    release=(10, 12),
)
FORMATS: Final = MappingProxyType({entry.name: entry for entry in (INT8, FP8, FP8_E5M2, INT4, NVFP4, MXFP8)})
"""All formats by name."""
NAMES: Final[Mapping[DType, str]] = MappingProxyType(
    {entry.dtype: entry.name for entry in reversed(tuple(FORMATS.values()))}
)
"""Default format name of each stored element type. FP8 values mean "fp8": only MXFP8 uses E8M0 scales."""
FLOAT: Final = "float"
"""Format name of an input without Q/DQ."""


def describe_request(weights: AbstractSet[str], activations: AbstractSet[str]) -> str:
    """Return one word for the formats of a node's weights and activations: int8, int4-weights, float ..."""
    formats = weights | activations
    if formats <= {FLOAT}:
        return FLOAT
    if len(formats) == 1:
        return next(iter(formats))
    if activations <= {FLOAT}:
        return f"{'+'.join(sorted(weights - {FLOAT}))}-weights"
    if weights <= {FLOAT}:
        return f"{'+'.join(sorted(activations - {FLOAT}))}-activations"
    return "+".join(sorted(formats - {FLOAT}))


def first_sm(format_: QuantFormat, *, rtx: bool) -> int:
    """Return the first GPU architecture for which a builder accepts a format; TensorRT for RTX does not support SM100.

    It builds MXFP8 from SM89 on, in float.
    """
    if not rtx:
        return format_.sm
    return {NVFP4.name: 120, MXFP8.name: FP8.sm}.get(format_.name, format_.sm)


def by_name(name: str) -> QuantFormat:
    """Return the number format called `name`.

    Raises:
        ValueError: there is none.
    """
    if name not in FORMATS:
        raise ValueError(f"{name!r} is not a number format; choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def of_dtype(dtype: DType, scale_dtype: DType | None = None) -> QuantFormat | None:
    """Return the number format with these types of values and block scales; None if there is none."""
    matching = (
        entry for entry in FORMATS.values() if entry.dtype is dtype and entry.scale_dtype is scale_dtype
    )
    return next(matching, None)


def _schema(_source: Any, _handler: Any) -> core_schema.CoreSchema:
    def read(value: object) -> QuantFormat:
        return value if isinstance(value, QuantFormat) else by_name(str(value))

    write = core_schema.plain_serializer_function_ser_schema(str, return_schema=core_schema.str_schema())
    return core_schema.no_info_plain_validator_function(read, serialization=write)


NamedFormat = Annotated[QuantFormat, GetPydanticSchema(_schema)]
"""A format that is stored in artefacts by its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """The formats that a recipe requests for a layer: one for its weights, and one for its run-time inputs.

    Attributes:
        name: its name in recipes.
        weights: the format of constant factors; None keeps the layer float.
        activations: the format of run-time factors; None keeps them and the arithmetic float.
        ops: operators whose kernels or importers take it; () means whatever the placement rules say.
    """

    name: str
    weights: QuantFormat | None
    activations: QuantFormat | None
    ops: tuple[str, ...] = ()

    @property
    def weight_only(self) -> bool:
        """True if only weights are stored in a low-bit format and the arithmetic is float."""
        return self.weights is not None and self.activations is None


MATRIX_OPERATORS: Final = ("MatMul", "Gemm")
SCHEMES: Final = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            Scheme(name="float", weights=None, activations=None),
            Scheme(name="int8", weights=INT8, activations=INT8),
            Scheme(name="fp8", weights=FP8, activations=FP8, ops=("Conv", *MATRIX_OPERATORS)),
            Scheme(name="int8-weights", weights=INT8, activations=None, ops=(*MATRIX_OPERATORS, "Gather")),
            Scheme(name="int4-weights", weights=INT4, activations=None, ops=(*MATRIX_OPERATORS, "Gather")),
            Scheme(name="nvfp4", weights=NVFP4, activations=NVFP4, ops=MATRIX_OPERATORS),
            Scheme(name="mxfp8", weights=MXFP8, activations=MXFP8, ops=MATRIX_OPERATORS),
        )
    }
)
"""All schemes by name."""
