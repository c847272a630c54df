"""Parses an ONNX file and checks that its parts are consistent."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import onnx
from google.protobuf.message import DecodeError, EncodeError

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io import deferred
from qdqtool.graph.onnx_io.deferred import attach, byte_size, flaw
from qdqtool.graph.onnx_io.walk import misspelt, parts, tensors
from qdqtool.io.files import VARIABLE, require_file, unreadable
from qdqtool.trt.ops import DEQUANTIZE, QUANTIZE, STANDARD_DOMAINS

# --- parsing ---------------------------------------------------------------------------------------------------------

# protobuf reads messages of less than 2 GiB.
_PROTOBUF_LIMIT = (1 << 31) - 1
# Number of bytes that distinguish a text or an archive from a model.
_HEAD = 512
_ANY_OPSET = 17
_SPELLERS = frozenset({"com.microsoft", "trt"})
"""Other domains that define Q and DQ operators."""
_AGAIN = "export or copy the model again"


def read(path: Path) -> onnx.ModelProto:
    """Return the model at `path` with all its weights in memory.

    Raises:
        InputFileError: not a file, not ONNX, without nodes, or with tensors whose bytes do not fit.
    """
    with guard_reading(path):
        return _check_file(path)


def _check_file(path: Path) -> onnx.ModelProto:
    proto = _parse(path, _head(path))
    if not proto.graph.node:
        raise InputFileError(
            "the model holds no nodes", fix="pass an ONNX model with at least one node", where=str(path)
        )
    newest = onnx.defs.onnx_opset_version()
    if not default_opset(proto) and not any(node.domain in STANDARD_DOMAINS for node in proto.graph.node):
        proto.opset_import.add(version=_ANY_OPSET)  # only operators of other domains, such as ai.onnx.ml
    opset = default_opset(proto)
    if not 0 < opset <= newest:
        problem = f"uses opset {opset}" if opset else "declares no opset"
        raise InputFileError(
            f"{problem}; the installed onnx package reads versions 1 to {newest}",
            fix=_AGAIN + " with a known opset",
            where=str(path),
        )
    _check_parts(proto, path)
    attach(proto, path)
    return proto


def _check_parts(proto: onnx.ModelProto, path: Path) -> None:
    """Check every tensor and attribute of the model once, wherever it is."""
    for part in parts(proto):
        trouble = flaw(part) if isinstance(part, onnx.TensorProto) else None
        if trouble:
            raise InputFileError(f"tensor {part.name!r} {trouble}", fix=_AGAIN, where=str(path))
    for part in parts(proto.graph):
        if isinstance(part, onnx.AttributeProto) and part.ref_attr_name:
            problem = f"attribute {part.name!r} refers to {part.ref_attr_name!r} of a function, but is in no function"
            raise InputFileError(problem, fix=_AGAIN, where=str(path))
        if isinstance(part, onnx.NodeProto) and part.domain in _SPELLERS and _lacks_scale(part):
            problem = f"node {part.name!r} ({part.op_type}) has no scale"
            raise InputFileError(problem, fix=_AGAIN, where=str(path))


def _lacks_scale(node: onnx.NodeProto) -> bool:
    """Return True if a node is a Q or DQ of any domain and has no values or no scale. Only ONNX's own domain has a schema."""
    named = node.op_type.endswith((QUANTIZE, DEQUANTIZE)) and "Dynamic" not in node.op_type
    return named and sum(map(bool, node.input[:2])) < len(("values", "scale"))


def default_opset(proto: onnx.ModelProto) -> int:
    """Return the version of a model's default operator set; 0 if none is stated."""
    return max((entry.version for entry in proto.opset_import if entry.domain in STANDARD_DOMAINS), default=0)


def _head(path: Path) -> bytes:
    """Return the first bytes of a model file; refuse folders, files over 2 GiB, empty files, LFS pointers."""
    require_file(path)
    try:
        if path.is_dir():
            inside = sorted({*path.glob("*.onnx"), *path.glob("onnx/*.onnx")})
            file = inside[0] if len(inside) == 1 else "the .onnx file inside it"
            raise InputFileError("the path is a folder", fix=f"pass {file}", where=str(path))
        if path.stat().st_size > _PROTOBUF_LIMIT:
            raise InputFileError(
                "the model is larger than 2 GiB, more than a protobuf file allows",
                fix="export the model with external data",
                where=str(path),
            )
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
            is_empty = not head.strip(b"\0") and not any(chunk.strip(b"\0") for chunk in _chunks(stream))
    except OSError as error:
        raise unreadable(path, error) from error
    if is_empty:
        raise InputFileError("the file is empty", fix=_AGAIN, where=str(path))
    if head.startswith(b"version https://git-lfs"):
        raise InputFileError(
            "the file is a Git LFS pointer, not the model",
            fix="fetch the real file with git lfs pull",
            where=str(path),
        )
    return head


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    return iter(partial(stream.read, 1 << 20), b"")


def _parse(path: Path, head: bytes) -> onnx.ModelProto:
    kind = "a text file, not an ONNX model" if _is_text(head) else "damaged, or not an ONNX model"
    try:
        proto = parse_in_pieces(path)
    except DecodeError as error:
        raise InputFileError(f"the file is {kind}", fix=_AGAIN, where=str(path)) from error
    if any(map(misspelt, parts(proto))):
        raise InputFileError(
            f"the file is {kind}: it contains names that are not UTF-8", fix=_AGAIN, where=str(path)
        )
    return proto


def _is_text(head: bytes) -> bool:
    return all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)


# --- damaged models --------------------------------------------------------------------------------------------------
# Converts all errors from reading a damaged model into a single error that names the file.

_log = logging.getLogger(__name__)
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, RuntimeError)
"""Exceptions that onnx, protobuf and NumPy raise about inconsistent fields; they differ between releases."""


_TYPE_NAMES = frozenset(onnx.TensorProto.DataType.keys())


@contextmanager
def guard_reading(path: Path) -> Iterator[None]:
    """Guard the reading of the model at `path`: report exceptions inside as errors in the file.

    The readers report known faults with better messages; this guard is for unknown faults.

    Raises:
        InputFileError: the content contradicts itself, or needs more memory than available.
    """
    try:
        yield
    except MemoryError as error:
        raise InputFileError(
            "the model needs more memory than available",
            fix=f"use a machine with more memory, or a smaller model; --max-memory and {VARIABLE} set the budget",
            where=str(path),
        ) from error
    except (*_DAMAGE, DecodeError, EncodeError) as error:
        _log.info("%s: reading failed", path, exc_info=True)
        reason = " ".join(str(error).split())[:300] or "no reason given"
        if isinstance(error, KeyError) and error.args[:1] and error.args[0] in _TYPE_NAMES:
            raise InputFileError(
                f"the model holds values of type {error.args[0]}, which neither onnxruntime nor TensorRT computes",
                fix="export the model with these values as FLOAT, FLOAT16 or FLOAT8E4M3FN",
                where=str(path),
            ) from error
        raise InputFileError(
            f"the file holds values that contradict each other: {reason} ({type(error).__name__})",
            fix="export or copy the model again",
            where=str(path),
        ) from error


# --- pieces -----------------------------------------------------------------------------------------------------------
# Parses and writes a large model weight by weight; heavy weights of a very large model stay in the file.
#
# Source: the protobuf wire format; field numbers from onnx.proto (ModelProto.graph is 7, GraphProto.initializer
# is 5, TensorProto.raw_data is 9).


# Field numbers of onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
_GRAPH: Final = 7
_INITIALIZER: Final = 5
_RAW_DATA: Final = 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# Bytes of a 64-bit number, seven bits in each.
_LONGEST_VARINT: Final = 10


class _Field(NamedTuple):
    """Position of a protobuf field in a file: start of its tag, start of its content, and end."""

    number: int
    begin: int
    content: int
    end: int


def parse_in_pieces(path: Path) -> onnx.ModelProto:
    """Return the model in the file at `path`, as protobuf itself would parse it.

    From `deferred.FROM` bytes on the heavy weights are references to their place in the file.

    Raises:
        DecodeError: the file does not keep the wire format.
        OSError: it cannot be read.
    """
    proto = onnx.ModelProto()
    with path.open("rb") as stream:
        size = path.stat().st_size
        source = path if size >= deferred.FROM else None
        for field in _fields(stream, 0, size):
            if field.number == _GRAPH:
                _parse_graph(stream, field, proto.graph, source)
            else:
                proto.MergeFromString(_bytes(stream, field.begin, field.end))
    return proto


def serialize_in_pieces(proto: onnx.ModelProto) -> Iterator[bytes]:
    """Yield the bytes of the whole model, as `deferred.whole` and protobuf would write it.

    Holds one deferred weight in memory at a time.

    Raises:
        InputFileError: a file of weights no longer exists or has changed.
    """
    put_off = {
        number: tensor
        for number, tensor in enumerate(proto.graph.initializer)
        if deferred.is_deferred(tensor)
    }
    light = onnx.ModelProto()
    light.CopyFrom(proto)
    for number in put_off:
        stub = light.graph.initializer[number]
        stub.ClearField("external_data")
        stub.ClearField("data_location")
        stub.raw_data = _STAND_IN
    content = light.SerializeToString(deterministic=True)
    if not put_off:
        yield content
        return
    stream = BytesIO(content)
    for field in _fields(stream, 0, len(content)):
        if field.number == _GRAPH:
            yield from _graph_in_pieces(stream, field, put_off)
        else:
            yield content[field.begin : field.end]


_STAND_IN: Final = b"?"
"""Placeholder for the values of a weight; with tag and length it takes three bytes."""


def _graph_in_pieces(
    stream: BinaryIO, whole: _Field, put_off: Mapping[int, onnx.TensorProto]
) -> Iterator[bytes]:
    fields = list(_fields(stream, whole.content, whole.end))
    numbers = iter(range(len(fields)))
    weights = [put_off.get(next(numbers)) if field.number == _INITIALIZER else None for field in fields]
    sizes = [
        field.end - field.begin if weight is None else _field_size(_tensor_size(field, weight))
        for field, weight in zip(fields, weights, strict=True)
    ]
    yield _pieces_head(_GRAPH, sum(sizes))
    for field, weight in zip(fields, weights, strict=True):
        if weight is None:
            yield _bytes(stream, field.begin, field.end)
            continue
        yield _pieces_head(_INITIALIZER, _tensor_size(field, weight))
        for part in list(_fields(stream, field.content, field.end)):
            if part.number == _RAW_DATA:
                values = deferred.content(weight)
                yield _pieces_head(_RAW_DATA, len(values))
                yield values
            else:
                yield _bytes(stream, part.begin, part.end)


def _tensor_size(stub: _Field, weight: onnx.TensorProto) -> int:
    """Return the serialized size of a tensor after its values have replaced the placeholder."""
    return stub.end - stub.content - _field_size(len(_STAND_IN)) + _field_size(byte_size(weight) or 0)


def _pieces_head(number: int, size: int) -> bytes:
    """Return the protobuf tag and length of a bytes field. The field numbers used here fit into one byte."""
    return bytes([number << 3 | _BYTES]) + _encode_varint(size)


def _field_size(size: int) -> int:
    """Return the serialized size of a protobuf field whose content has `size` bytes."""
    return 1 + len(_encode_varint(size)) + size


def _encode_varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    spelled = bytearray()
    while number > 0x7F:
        spelled.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*spelled, number])


def external_locations(path: Path) -> tuple[str, ...]:
    """Return the external files that the tensors of a model name, without checking them; () if the file is not a model.

    Weights inside the file are looked at one by one, so that a model of 2 GB does not fill the memory.

    Raises:
        OSError: it cannot be read.
    """
    locations: set[str] = set()
    light = onnx.ModelProto()
    try:
        with path.open("rb") as stream:
            for field in _fields(stream, 0, path.stat().st_size):
                if field.number != _GRAPH:
                    light.MergeFromString(_bytes(stream, field.begin, field.end))
                    continue
                for inner in _fields(stream, field.content, field.end):
                    if inner.number == _INITIALIZER:
                        tensor = onnx.TensorProto.FromString(_bytes(stream, inner.content, inner.end))
                        locations.update(_locations(tensor))
                    else:
                        light.graph.MergeFromString(_bytes(stream, inner.begin, inner.end))
    except DecodeError:
        return ()
    return tuple(sorted(locations.union(*map(_locations, tensors(light)))))


def _locations(tensor: onnx.TensorProto) -> Iterator[str]:
    return (entry.value for entry in tensor.external_data if entry.key == "location")


def _parse_graph(stream: BinaryIO, whole: _Field, graph: onnx.GraphProto, source: Path | None) -> None:
    graph.SetInParent()
    other_fields = bytearray()
    for field in _fields(stream, whole.content, whole.end):
        if field.number == _INITIALIZER:
            tensor = graph.initializer.add()
            if source is None or not _refer_to_values(stream, field, tensor, source):
                tensor.Clear()
                tensor.MergeFromString(_bytes(stream, field.content, field.end))
        else:
            other_fields += _bytes(stream, field.begin, field.end)
    graph.MergeFromString(bytes(other_fields))


def _refer_to_values(stream: BinaryIO, field: _Field, tensor: onnx.TensorProto, source: Path) -> bool:
    """Turn a large tensor into a reference to its packed values in the file; return False for the rest."""
    if field.end - field.content < deferred.HEAVY:
        return False
    values: list[_Field] = []
    for part in _fields(stream, field.content, field.end):
        if part.number == _RAW_DATA:
            values.append(part)
        else:
            tensor.MergeFromString(_bytes(stream, part.begin, part.end))
    if len(values) != 1 or tensor.data_location or tensor.external_data or tensor.HasField("segment"):
        return False
    (raw,) = values
    size = raw.end - raw.content
    if byte_size(tensor) != size or any(dim < 0 for dim in tensor.dims) or not deferred.is_worth(tensor):
        return False
    deferred.refer(tensor, source, stream, raw.content, size)
    return True


def _fields(stream: BinaryIO, position: int, end: int) -> Iterator[_Field]:
    while position < end:
        stream.seek(position)
        tag = _varint(stream)
        kind = tag & 7
        if kind == _BYTES:
            size = _varint(stream)
        elif kind == _VARINT:
            _varint(stream)
            size = 0
        elif kind in {_FIXED64, _FIXED32}:
            size = 8 if kind == _FIXED64 else 4
        else:
            raise DecodeError(f"a field has the unknown wire type {kind}")
        content = stream.tell()
        field = _Field(tag >> 3, position, content, content + size)
        if field.end > end:
            raise DecodeError("a field is longer than its message")
        yield field
        position = field.end


def _varint(stream: BinaryIO) -> int:
    value = 0
    for index in range(_LONGEST_VARINT):
        byte = stream.read(1)
        if not byte:
            break
        value |= (byte[0] & 0x7F) << (7 * index)
        if byte[0] < 0x80:
            return value
    raise DecodeError("a number does not end")


def _bytes(stream: BinaryIO, begin: int, end: int) -> bytes:
    stream.seek(begin)
    return stream.read(end - begin)
