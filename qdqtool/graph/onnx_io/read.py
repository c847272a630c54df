"""Parses an ONNX file and checks that its parts are consistent."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError, EncodeError

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.deferred import attach, flaw
from qdqtool.graph.onnx_io.pieces import parse_in_pieces
from qdqtool.graph.onnx_io.walk import misspelt, parts
from qdqtool.io.files import require_file, unreadable
from qdqtool.io.memory import VARIABLE
from qdqtool.trt.ops import DEQUANTIZE, QUANTIZE

# --- parsing ---------------------------------------------------------------------------------------------------------

# protobuf reads less than 2 GiB in one piece.
_PROTOBUF_LIMIT = (1 << 31) - 1
# Bytes by which a text or an archive is told from a model.
_HEAD = 512
_DEFAULT = frozenset({"", "ai.onnx"})
_ANY_OPSET = 17
_SPELLERS = frozenset({"com.microsoft", "trt"})
"""Other domains that define Q and DQ operators."""
_AGAIN = "export or copy the model again"


def read(path: Path) -> onnx.ModelProto:
    """Return the model at `path` with all its weights in memory.

    Raises:
        InputFileError: not a file, not ONNX, without nodes, or with tensors whose bytes do not fit.
    """
    with guarded(path):
        return _checked(path)


def _checked(path: Path) -> onnx.ModelProto:
    proto = _parse(path, _head(path))
    if not proto.graph.node:
        raise InputFileError(
            "holds no nodes", fix="pass an ONNX model with at least one node", where=str(path)
        )
    newest = onnx.defs.onnx_opset_version()
    if not default_opset(proto) and not any(node.domain in _DEFAULT for node in proto.graph.node):
        proto.opset_import.add(version=_ANY_OPSET)  # only operators of other domains, such as ai.onnx.ml
    opset = default_opset(proto)
    if not 0 < opset <= newest:
        what = f"uses opset {opset}" if opset else "declares no opset"
        raise InputFileError(
            f"{what}; the installed onnx package reads 1 to {newest}",
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
            what = f"attribute {part.name!r} refers to {part.ref_attr_name!r} of a function, but is in no function"
            raise InputFileError(what, fix=_AGAIN, where=str(path))
        if isinstance(part, onnx.NodeProto) and part.domain in _SPELLERS and _lacks_scale(part):
            what = f"node {part.name!r} ({part.op_type}) has no scale"
            raise InputFileError(what, fix=_AGAIN, where=str(path))


def _lacks_scale(node: onnx.NodeProto) -> bool:
    """Return True if a node is a Q or DQ of any domain without values or scale; only ONNX's own domain has a schema."""
    named = node.op_type.endswith((QUANTIZE, DEQUANTIZE)) and "Dynamic" not in node.op_type
    return named and sum(map(bool, node.input[:2])) < len(("values", "scale"))


def default_opset(proto: onnx.ModelProto) -> int:
    """Return the version of the default operator set; 0 if none is stated."""
    return max((entry.version for entry in proto.opset_import if entry.domain in _DEFAULT), default=0)


def _head(path: Path) -> bytes:
    """Return the first bytes of a file, enough to reject files that are not models."""
    require_file(path)
    try:
        if path.is_dir():
            raise InputFileError("is a folder", fix="pass the .onnx file inside it", where=str(path))
        if path.stat().st_size > _PROTOBUF_LIMIT:
            raise InputFileError(
                "is larger than 2 GiB, more than a protobuf file allows",
                fix="export the model with external data",
                where=str(path),
            )
        with path.open("rb") as stream:
            head = stream.read(_HEAD)
            is_empty = not head.strip(b"\0") and not any(chunk.strip(b"\0") for chunk in _chunks(stream))
    except OSError as error:
        raise unreadable(path, error) from error
    if is_empty:
        raise InputFileError("is empty", fix=_AGAIN, where=str(path))
    if head.startswith(b"version https://git-lfs"):
        raise InputFileError(
            "is a Git LFS pointer, not the model",
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
        raise InputFileError(f"is {kind}", fix=_AGAIN, where=str(path)) from error
    if any(map(misspelt, parts(proto))):
        raise InputFileError(f"is {kind}: it contains broken names", fix=_AGAIN, where=str(path))
    return proto


def _is_text(head: bytes) -> bool:
    return all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in head)


# --- damaged models --------------------------------------------------------------------------------------------------
# Turns whatever a damaged model raises while it is read into the one error that names the file.

_log = logging.getLogger(__name__)
_DAMAGE = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError, RuntimeError)
"""Exceptions that onnx, protobuf and NumPy raise about inconsistent fields; they differ between releases."""


_TYPE_NAMES = frozenset(onnx.TensorProto.DataType.keys())


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Guard the reading of the model at `path`: report exceptions inside as faults of the file.

    The readers check what they know can be wrong and say it better; this is for unknown cases.

    Raises:
        InputFileError: the content contradicts itself, or needs more memory than available.
    """
    try:
        yield
    except MemoryError as error:
        raise InputFileError(
            "needs more memory than available",
            fix=f"use a machine with more memory, or a smaller model; --max-memory and {VARIABLE} set the budget",
            where=str(path),
        ) from error
    except (*_DAMAGE, DecodeError, EncodeError) as error:
        _log.info("%s: reading failed", path, exc_info=True)
        reason = " ".join(str(error).split())[:300] or "no reason given"
        if isinstance(error, KeyError) and error.args[:1] and error.args[0] in _TYPE_NAMES:
            raise InputFileError(
                f"holds values of type {error.args[0]}, which neither onnxruntime nor TensorRT computes",
                fix="export the model with these values as FLOAT, FLOAT16 or FLOAT8E4M3FN",
                where=str(path),
            ) from error
        raise InputFileError(
            f"holds values that contradict each other: {reason} ({type(error).__name__})",
            fix="export or copy the model again",
            where=str(path),
        ) from error
