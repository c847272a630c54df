"""Meaning of the words for types and formats in layer information.

The words come from TensorRT 8.0 to 11 and TensorRT for RTX: "Half", "Row major linear FP32", "Thirty-two wide channel
vectorized row major Int8 format", "Channel major FP16 format where channel % 8 == 0", "Int8[1,64:32,800,912]",
"(NHWC) Channel major format", "kCHW32".

Autotuning prints strides, `Int8(50176,50176:4,224,1)`: the strides of the dimensions follow the type, outermost
first. They count elements, or vectors if the format packs a dimension. `s:n` marks the packed dimension: n
neighbouring elements form one vector. So `Float(150528,50176,224,1)` is the plain row-major order of 1x3x224x224, and
`Int8(50176,50176:4,224,1)` packs four channels of it into 32 bits. Layers of a finished engine print extents instead:
`Int8[1,3:4,224,224]` is 1x3x224x224 with its channels packed (and padded) to four; releases up to 8.4 write that with
round brackets too.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

from qdqtool.core.engine import EngineTensor
from qdqtool.core.tensors import DType

_WORD = re.compile(r"[A-Za-z]+[0-9]*[A-Za-z0-9_]*")
_ENUM = re.compile(r"^k([A-Z][A-Z0-9_]*)$")
_WIDE = {"two": 2, "four": 4, "eight": 8, "sixteen": 16, "thirty-two": 32, "sixty-four": 64}
_WIDE_WORDS = re.compile(r"^([a-z-]+)[- ]wide channel vectorized", re.IGNORECASE)
_MODULO = re.compile(r"channel % (\d{1,4}) == 0")
_CODE = re.compile(r"\b(?:k|DLA_)?(?:CHW|HWC|CDHW|DHWC)(\d{1,3})\b")
_COLON = re.compile(r"-?\d+:(\d{1,4})")
_FORMAT = re.compile(r"\s*(?P<type>\w{1,20})\s*(?P<open>[(\[])(?P<dims>[^()\[\]]{0,400})[)\]]\s*")
_VECTORS = {
    (DType.INT8, 4): "NC/4HW4: four channels packed, for the dp4a instruction and for small channel counts",
    (DType.INT8, 32): "NC/32HW32: 32 channels packed, for the INT8 tensor cores (imma)",
    (DType.INT8, 16): "NHWC16: channels last, padded to 16, for INT8 tensor cores",
    (DType.FLOAT16, 2): "NC/2HW2: two channels packed, for half2 arithmetic",
    (DType.FLOAT16, 8): "NHWC8: channels last, padded to 8, for FP16 tensor cores",
    (DType.FLOAT16, 16): "NC/16HW16: 16 channels packed (also the format of DLA)",
    (DType.FLOAT16, 32): "NC/32HW32: 32 channels packed",
    (DType.FLOAT32, 4): "NHWC4: channels last, padded to 4",
    (DType.FLOAT32, 32): "NC/32HW32: 32 channels packed",
}


@lru_cache(maxsize=4096)
def dtype_of(words: str) -> DType:
    """Return the element type in a type or format text; UNKNOWN if the text names no type or several types.

    >>> dtype_of("Thirty-two wide channel vectorized row major Int8 format")
    <DType.INT8: 'int8'>
    """
    whole = DType.parse(words)
    if whole is not DType.UNKNOWN:
        return whole
    named = {DType.parse(_ENUM.sub(r"\1", word)) for word in _WORD.findall(words)} - {DType.UNKNOWN}
    return named.pop() if len(named) == 1 else DType.UNKNOWN


def channel_multiple(words: str) -> int:
    """Return the multiple to which a memory format pads the channels; 1 without padding.

    >>> channel_multiple("Thirty-two wide channel vectorized row major Int8 format")
    32
    >>> channel_multiple("Int8[1,3:4,224,224]")
    4
    >>> channel_multiple("kCHW32")
    32
    """
    wide = _WIDE_WORDS.search(words)
    if wide:
        return _WIDE.get(wide[1].lower(), 1)
    number = _MODULO.search(words) or _COLON.search(words) or _CODE.search(words)
    return max(int(number[1]), 1) if number else 1


def short(words: str) -> str:
    """Return a short name of a memory format: "CHW32", "HWC8", "linear"; "" if the format is unknown."""
    multiple = channel_multiple(words)
    lower = words.lower()
    if "channel major" in lower or "hwc" in lower:
        return f"HWC{multiple}" if multiple > 1 else "HWC"
    if multiple > 1:
        return f"CHW{multiple}"
    return "linear" if "linear" in lower or "row major" in lower else ""


def padded_bytes(tensor: EngineTensor) -> int | None:
    """Return the bytes of a tensor with its channels padded as the format requires; None if shape or type is unknown."""
    plain, multiple = tensor.bytes, channel_multiple(tensor.format)
    if plain is None or tensor.shape is None or len(tensor.shape) < 3 or not tensor.shape[1]:
        return plain
    return plain // tensor.shape[1] * (-(-tensor.shape[1] // multiple) * multiple)


def explain_format(text: str) -> str | None:
    """Return the meaning of a format text in words; None if the text is not a format.

    >>> explain_format("Float(256,1,16,1)")
    'elements of type fp32, channels last; the numbers are strides in elements, outermost dimension first'
    """
    match = _FORMAT.fullmatch(text)
    if match is None:
        return None
    dtype = DType.parse(match["type"])
    if not match["dims"].strip():
        return f"{_elements(dtype)}, a scalar"
    parts = [part.strip() for part in match["dims"].split(",")]
    numbers = tuple(part.partition(":")[0] for part in parts)
    packed = [(at, part.partition(":")[2]) for at, part in enumerate(parts) if ":" in part]
    vector_dim, vector = None, 1
    if packed and packed[0][1].isdecimal() and len(packed[0][1]) < 6:
        vector_dim, vector = packed[0][0], int(packed[0][1])
    strides = match["open"] == "(" and numbers[-1] == "1"
    order = _order(numbers, vector_dim) if strides else ""
    return _words(dtype, numbers, (vector_dim, vector), order)


def _order(strides: tuple[str, ...], vector_dim: int | None) -> str:
    if vector_dim is not None:
        return "channels last, padded" if strides[vector_dim] == "1" and len(strides) > 2 else "vectorized"
    if not all(stride.lstrip("-").isdecimal() for stride in strides):
        return "unknown"
    numbers = [int(stride) for stride in strides]
    if numbers[-1] == 1 and all(a >= b for a, b in pairwise(numbers)):
        return "row-major"
    if len(numbers) > 2 and numbers[1] == 1:
        return "channels last"
    return "unknown"


def _words(dtype: DType, numbers: tuple[str, ...], packing: tuple[int | None, int], order: str) -> str:
    kind = _elements(dtype)
    vector_dim, vector = packing
    packed = ""
    if vector_dim is not None:
        vectors = _VECTORS.get((dtype, vector), f"{vector} elements packed")
        packed = f", dimension {vector_dim} packed in vectors of {vector} ({vectors})"
    if order:
        unit = "vectors" if vector_dim is not None else "elements"
        return f"{kind}{packed}, {order}; the numbers are strides in {unit}, outermost dimension first"
    return f"{kind}, a tensor of {' x '.join(numbers)}{packed}; the numbers are extents"


def _elements(dtype: DType) -> str:
    return f"elements of type {dtype}" if dtype is not DType.UNKNOWN else "elements of an unknown type"
