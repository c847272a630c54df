"""Shape inference over the whole graph, at any model size."""

from __future__ import annotations

import logging
from pathlib import Path

import onnx

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.read import default_opset
from qdqtool.graph.onnx_io.skeleton import skeleton
from qdqtool.graph.onnx_io.walk import copied

_log = logging.getLogger(__name__)
_MOST_DIMENSIONS = 64
"""Dimensions of a tensor that NumPy and every runtime end at; a shape with more is that of a hostile model."""


def infer(proto: onnx.ModelProto, path: Path, *, keep: bool = True) -> str | None:
    """Write the type and shape of every tensor that inference can know into the model.

    `keep=False` forgets what was noted before, for when types have changed; `path` is named in errors. Returns a note
    when inference gave up.
    Source of the rules: the shape functions of the onnx operator schemas, with data propagation for shape arithmetic.

    Raises:
        InputFileError: inference takes more memory or time than a model of this size may take.
    """
    light, _ = skeleton(proto)
    if not keep:
        del light.graph.value_info[:]
    try:
        known, note = _plain(light)
        if known is None:
            return note
        values = {value.name: value for value in known.graph.value_info if _is_possible(value)}
        made = {name for node in proto.graph.node for name in node.output if name}
        outputs = {value.name: value for value in known.graph.output}
        blank = {name for name in made if _is_vague(values.get(name) or outputs.get(name))}
        found = _resolved(light) if blank else {}
    except PassExceeded as error:
        raise InputFileError(
            f"asks shape inference for the absurd: it {error}",
            fix="export the model again; a constant that gives a size, a range or a repetition is far too large",
            where=str(path),
        ) from error
    values |= {name: value for name, value in found.items() if name in blank}
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(values[name] for name in sorted(values) if name not in outputs)
    for mine in proto.graph.output:
        theirs = values.get(mine.name) or outputs[mine.name]
        if not keep or not _has_shape(mine) or (_is_vague(mine) and not _is_vague(theirs)):
            mine.type.CopyFrom(theirs.type)
    return None


def infer_anew(proto: onnx.ModelProto, path: Path) -> str | None:
    """Like `infer`, but believe what the file noted only of tensors that inference knows nothing of.

    Exporters note shapes that are wrong, of the sample they traced or of a tensor that was renamed since.

    Raises:
        InputFileError: as `infer`.
    """
    stored = [copied(value) for value in proto.graph.value_info]
    del proto.graph.value_info[:]
    note = infer(proto, path)
    known = {value.name for value in proto.graph.value_info if _has_shape(value)}
    known |= {value.name for value in proto.graph.output}
    made = {name for node in proto.graph.node for name in node.output if name}
    missing = [value for value in stored if value.name in made - known]
    if not missing:
        return note
    vague = {value.name for value in missing}
    others = [copied(value) for value in proto.graph.value_info if value.name not in vague]
    del proto.graph.value_info[:]
    proto.graph.value_info.extend((*others, *missing))
    return infer(proto, path)


def _plain(light: onnx.ModelProto) -> tuple[onnx.ModelProto | None, str | None]:
    """What onnx infers, at the second try without the shapes that were stored; None and a note when both fail."""
    try:
        return onnx.ModelProto.FromString(run_pass("infer", light)), None
    except PassRefused as error:
        _log.info("shape inference with the stored shapes failed: %s", error)
    del light.graph.value_info[:]
    try:
        return onnx.ModelProto.FromString(run_pass("infer", light)), None
    except PassRefused as error:
        return None, f"shape inference failed: {str(error).splitlines()[0]}"


def _resolved(light: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """What is known with numbers in the place of symbols; see `symbols`."""
    content = run_pass("resolve", light, opset=default_opset(light))
    found = onnx.GraphProto.FromString(content).value_info
    return {value.name: value for value in found if _is_possible(value)}


def _is_possible(value: onnx.ValueInfoProto) -> bool:
    """Whether a tensor can have this shape."""
    return len(value.type.tensor_type.shape.dim) <= _MOST_DIMENSIONS


def _has_shape(value: onnx.ValueInfoProto | None) -> bool:
    return (
        value is not None and value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    )


def _is_vague(value: onnx.ValueInfoProto | None) -> bool:
    """Whether the shape is unknown or holds a symbol that inference made up."""
    if value is None or not _has_shape(value):
        return True
    return any(dim.dim_param.startswith("unk__") for dim in value.type.tensor_type.shape.dim)
