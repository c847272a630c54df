"""Shape inference over the whole graph, at any model size."""

from __future__ import annotations

import logging

import onnx

from qdqtool.graph.skeleton import skeleton

_log = logging.getLogger(__name__)


def infer(proto: onnx.ModelProto, *, keep: bool = True) -> str | None:
    """Write the type and shape of every tensor that inference can know into the model.

    `keep=False` forgets what was noted before, for when types have changed. Returns a note when inference gave up.
    Source of the rules: the shape functions of the onnx operator schemas, with data propagation for shape arithmetic.
    """
    light, _ = skeleton(proto)
    if not keep:
        del light.graph.value_info[:]
    note = None
    for attempt in ("with", "without"):
        try:
            known = onnx.shape_inference.infer_shapes(light, data_prop=True)
            break
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError) as error:
            _log.info("shape inference %s the stored shapes failed: %s", attempt, error)
            note = f"shape inference failed: {_first_line(error)}"
            del light.graph.value_info[:]
    else:
        return note
    del proto.graph.value_info[:]
    proto.graph.value_info.extend(known.graph.value_info)
    for mine, found in zip(proto.graph.output, known.graph.output, strict=True):
        complete = mine.type.HasField("tensor_type") and mine.type.tensor_type.HasField("shape")
        if not keep or not complete:
            mine.type.CopyFrom(found.type)
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
