"""Shape inference over the whole graph, at any model size."""

from __future__ import annotations

import logging

import onnx
from onnx.shape_inference import InferenceError, infer_shapes

from qdqtool.graph.read import default_opset
from qdqtool.graph.skeleton import skeleton
from qdqtool.graph.symbols import resolve

_log = logging.getLogger(__name__)
_FAILURES = (InferenceError, RuntimeError, ValueError)


def infer(proto: onnx.ModelProto, *, keep: bool = True) -> str | None:
    """Write the type and shape of every tensor that inference can know into the model.

    `keep=False` forgets what was noted before, for when types have changed. Returns a note when inference gave up.
    Source of the rules: the shape functions of the onnx operator schemas, with data propagation for shape arithmetic.
    """
    light, _ = skeleton(proto)
    if not keep:
        del light.graph.value_info[:]
    known, note = _plain(light)
    if known is None:
        return note
    values = {value.name: value for value in known.graph.value_info}
    made = {name for node in proto.graph.node for name in node.output if name}
    outputs = {value.name: value for value in known.graph.output}
    blank = {name for name in made if _is_vague(values.get(name) or outputs.get(name))}
    found = resolve(light, default_opset(light)) if blank else {}
    values |= {name: value for name, value in found.items() if name in blank}
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(values[name] for name in sorted(values) if name not in outputs)
    for mine in proto.graph.output:
        theirs = values.get(mine.name) or outputs[mine.name]
        if not keep or not _has_shape(mine) or (_is_vague(mine) and not _is_vague(theirs)):
            mine.type.CopyFrom(theirs.type)
    return None


def _plain(light: onnx.ModelProto) -> tuple[onnx.ModelProto | None, str | None]:
    """What onnx infers, at the second try without the shapes that were stored; None and a note when both fail."""
    try:
        return infer_shapes(light, data_prop=True), None
    except _FAILURES as error:
        _log.info("shape inference with the stored shapes failed: %s", error)
    del light.graph.value_info[:]
    try:
        return infer_shapes(light, data_prop=True), None
    except _FAILURES as error:
        return None, f"shape inference failed: {str(error).strip().splitlines()[0]}"


def _has_shape(value: onnx.ValueInfoProto | None) -> bool:
    return (
        value is not None and value.type.HasField("tensor_type") and value.type.tensor_type.HasField("shape")
    )


def _is_vague(value: onnx.ValueInfoProto | None) -> bool:
    """Whether the shape is unknown or holds a symbol that inference made up."""
    if value is None or not _has_shape(value):
        return True
    return any(dim.dim_param.startswith("unk__") for dim in value.type.tensor_type.shape.dim)
