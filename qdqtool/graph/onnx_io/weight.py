"""Sizes of tensors, and checks that their bytes fit their shape."""

from __future__ import annotations

from math import prod

import onnx

_BITS = {
    "FLOAT": 32,
    "DOUBLE": 64,
    "FLOAT16": 16,
    "BFLOAT16": 16,
    "INT8": 8,
    "UINT8": 8,
    "INT16": 16,
    "UINT16": 16,
    "INT32": 32,
    "UINT32": 32,
    "INT64": 64,
    "UINT64": 64,
    "BOOL": 8,
    "COMPLEX64": 64,
    "COMPLEX128": 128,
    "INT4": 4,
    "UINT4": 4,
    "FLOAT4E2M1": 4,
    "FLOAT8E4M3FN": 8,
    "FLOAT8E4M3FNUZ": 8,
    "FLOAT8E5M2": 8,
    "FLOAT8E5M2FNUZ": 8,
    "FLOAT8E8M0": 8,
    "INT2": 2,
    "UINT2": 2,
}
# Elements; no memory holds so many, and their product does not overflow yet.
_LARGEST = 1 << 40


def type_name(tensor: onnx.TensorProto) -> str:
    """Return the ONNX name of the element type; "" for an unknown type number."""
    known = tensor.data_type in onnx.TensorProto.DataType.values()
    return onnx.TensorProto.DataType.Name(tensor.data_type) if known else ""


def byte_size(tensor: onnx.TensorProto) -> int | None:
    """Return the bytes of the values as ONNX packs them; None for strings and for unknown types."""
    bits = _BITS.get(type_name(tensor))
    return None if bits is None else (prod(tensor.dims) * bits + 7) // 8


def flaw(tensor: onnx.TensorProto) -> str | None:
    """Return the inconsistency between a tensor's type, shape and stored values; None if they agree.

    External data is not looked at.
    """
    name = type_name(tensor)
    if not name or name == "UNDEFINED":
        return f"has element type number {tensor.data_type}, which ONNX does not define"
    if any(dim < 0 for dim in tensor.dims) or prod(tensor.dims) > _LARGEST:
        return f"has the impossible shape {list(tensor.dims)}"
    if tensor.HasField("segment"):
        return "is stored in segments, which no release of onnx reads"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return "stores strings in an external file, which ONNX forbids" if name == "STRING" else None
    if any(not _is_text(entry) for entry in tensor.string_data):
        return "holds strings that are not UTF-8"
    if tensor.HasField("raw_data"):
        wanted, found = byte_size(tensor), len(tensor.raw_data)
    else:
        wanted, found = _stored(tensor, name)
    return (
        None
        if wanted == found
        else f"has shape {list(tensor.dims)} but holds {found} of {wanted} values or bytes"
    )


def _is_text(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _stored(tensor: onnx.TensorProto, name: str) -> tuple[int, int]:
    """Return the number of entries that the typed field should hold, and that it holds."""
    count = prod(tensor.dims)
    if name == "STRING":
        return count, len(tensor.string_data)
    if name in {"FLOAT", "COMPLEX64"}:
        return count * (1 + (name == "COMPLEX64")), len(tensor.float_data)
    if name in {"DOUBLE", "COMPLEX128"}:
        return count * (1 + (name == "COMPLEX128")), len(tensor.double_data)
    if name == "INT64":
        return count, len(tensor.int64_data)
    if name in {"UINT32", "UINT64"}:
        return count, len(tensor.uint64_data)
    packed = 8 // min(8, _BITS[name])
    return (count + packed - 1) // packed, len(tensor.int32_data)
