"""Raises a model's opset with onnx's version converter."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import onnx

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.read import default_opset
from qdqtool.graph.onnx_io.skeleton import restore, skeleton
from qdqtool.graph.onnx_io.walk import parts

LOWEST = 13
"""First opset whose QuantizeLinear and DequantizeLinear have a channel axis."""
HALF_SCALES = 19
"""First opset whose QuantizeLinear and DequantizeLinear take FP16 scales."""
_SCAN_WITHOUT_BATCH = 9
"""First opset whose Scan has no batch dimension and no lengths; onnx's converter leaves the node as it is."""
_RAISED = "opset raised from"


def was_raised(notes: Iterable[str]) -> bool:
    """Whether the notes of a model say that its opset was converted."""
    return any(note.startswith(_RAISED) for note in notes)


def raise_opset(proto: onnx.ModelProto, target: int, path: Path) -> tuple[onnx.ModelProto, str | None]:
    """The same model at opset `target` or above, and a note when it had to be converted.

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
            f"holds a Scan of opset {opset}, whose inputs have a batch dimension that newer opsets do not know",
            fix=f"export the model again with opset {target} or newer",
            where=str(path),
        )
    light, heavy = skeleton(proto)
    light.ir_version = max(light.ir_version, 4)
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
    for entry in light.opset_import:
        if entry.domain in {"", "ai.onnx"}:
            entry.version = target
    return restore(light, heavy), f"{_RAISED} {opset} to {target}"
