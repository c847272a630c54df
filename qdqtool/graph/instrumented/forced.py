"""Makes every If of a model take one branch, so that one sample runs bodies that its own conditions leave out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.read import read
from qdqtool.graph.onnx_io.walk import copied, parts

_NAME = "qdqtool_forced_condition"


def forced(model: Model, condition: bool) -> Model | None:
    """Return the model in which every If, also in bodies, takes its then-branch or its else-branch; None without an If."""
    if not _ifs(model.proto):
        return None
    proto = copied(model.proto)
    for node in _ifs(proto):
        node.input[0] = _NAME
    proto.graph.initializer.append(numpy_helper.from_array(np.array(condition), _NAME))
    return replace(model, proto=proto)


def as_written(model: Model) -> Model:
    """Return the model in the file, without any of our changes."""
    return Model(proto=read(model.path), path=model.path)


def _ifs(proto: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [part for part in parts(proto.graph) if isinstance(part, onnx.NodeProto) and part.op_type == "If"]
