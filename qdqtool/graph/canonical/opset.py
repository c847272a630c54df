"""Raises a model's opset with onnx's version converter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

import onnx

from qdqtool.errors import InputFileError
from qdqtool.graph.canonical.resize import write_out_resizes
from qdqtool.graph.canonical.softmax import shield_readers, unshield_readers, write_out_hardmax
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.read import default_opset
from qdqtool.graph.onnx_io.skeleton import restore, skeleton
from qdqtool.graph.onnx_io.walk import parts
from qdqtool.trt.ops import QDQ

LOWEST = 13
"""First opset whose QuantizeLinear and DequantizeLinear have a channel axis."""
HALF_SCALES = 19
"""First opset whose QuantizeLinear and DequantizeLinear take FP16 scales."""
_SCAN_WITHOUT_BATCH = 9
"""First opset whose Scan has no batch dimension and no lengths; onnx's converter does not change the node."""
_PLACED_PIXELS = 11
"""First opset whose Resize states the positions of its pixels."""
_RAISED = "opset raised from"
_LATER = "qdqtool.later"
"""Temporary domain of Q/DQ nodes while a converter runs that does not know their attributes."""


def was_raised(notes: Iterable[str]) -> bool:
    """Return True if the notes of a model say that its opset was converted."""
    return any(note.startswith(_RAISED) for note in notes)


def written_for(proto: onnx.ModelProto) -> int:
    """Return the opset of the newest Q/DQ attributes; 0 if the opset of the model has them all.

    NVIDIA's modelopt writes blocks of INT4 (block_size, opset 21) into models of opset 17, and TensorRT reads them.
    """
    opset = default_opset(proto)
    return max((_needs(part) for part in _late(proto, opset)), default=0)


def _late(proto: onnx.ModelProto, opset: int) -> Iterator[onnx.NodeProto]:
    for part in parts(proto.graph):
        is_qdq = isinstance(part, onnx.NodeProto) and part.op_type in QDQ and part.domain in {"", "ai.onnx"}
        if is_qdq and _needs(part) > opset:
            yield part


def _needs(node: onnx.NodeProto) -> int:
    """Return the first opset that knows all attributes of a node; 0 if none does, which the checker reports."""
    names = {attribute.name for attribute in node.attribute}
    return min((since for since, known in _versions(node.op_type) if names <= known), default=0)


@cache
def _versions(op: str) -> tuple[tuple[int, frozenset[str]], ...]:
    """Return the versions of an operator, newest first: the opset and the attributes that it has."""
    found = []
    schema = onnx.defs.get_schema(op)
    while True:
        found.append((schema.since_version, frozenset(schema.attributes)))
        try:
            schema = onnx.defs.get_schema(op, schema.since_version - 1, "")
        except onnx.defs.SchemaError:  # the operator is no older
            return tuple(found)


def raise_opset(proto: onnx.ModelProto, target: int, path: Path) -> tuple[onnx.ModelProto, str | None]:
    """Return the model at opset `target` or above, and a note if it had to be converted.

    Raises:
        InputFileError: the converter does not know how.
    """
    opset = default_opset(proto)
    if opset >= target:
        return proto, None
    if opset < _SCAN_WITHOUT_BATCH and any(
        isinstance(part, onnx.NodeProto) and part.op_type == "Scan" for part in parts(proto.graph)
    ):
        raise InputFileError(
            f"holds a Scan of opset {opset}, whose inputs have a batch dimension, which newer opsets do not allow",
            fix=f"export the model again with opset {target} or newer",
            where=str(path),
        )
    light, heavy = skeleton(proto)
    light.ir_version = max(light.ir_version, 4)
    later = {part.name for part in _late(light, opset)}
    _move(light, later, _LATER)
    moved = shield_readers(light.graph) if opset < LOWEST else {}
    try:
        raised = onnx.ModelProto.FromString(run_pass("convert", light, target=target))
    except (PassRefused, PassExceeded) as error:
        reason = str(error).strip().splitlines()[0].rpartition("failed: ")[2]
        raise InputFileError(
            f"has opset {opset} and cannot be converted to {target}: {reason}",
            fix=f"export the model again with opset {target} or newer",
            where=str(path),
        ) from error
    # Only graph and version are taken: the converter forgets metadata and other domains.
    light.graph.CopyFrom(raised.graph)
    unshield_readers(light.graph, moved)
    if opset < _PLACED_PIXELS <= target:
        write_out_resizes(light.graph)
    if opset < LOWEST <= target:
        write_out_hardmax(light.graph)
    _move(light, later, "")
    for entry in light.opset_import:
        if entry.domain in {"", "ai.onnx"}:
            entry.version = target
    return restore(light, heavy), f"{_RAISED} {opset} to {target}"


def _move(proto: onnx.ModelProto, names: AbstractSet[str], domain: str) -> None:
    """Move Q/DQ nodes to a domain."""
    for part in parts(proto.graph) if names else ():
        if isinstance(part, onnx.NodeProto) and part.op_type in QDQ and part.name in names:
            part.domain = domain
    kept = [entry for entry in proto.opset_import if entry.domain != _LATER]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    if names and domain:
        proto.opset_import.add(domain=domain, version=1)
