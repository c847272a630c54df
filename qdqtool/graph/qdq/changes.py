"""Writes what calibration changed in a model's constants into the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.weights import WeightChanges
from qdqtool.errors import InputFileError
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.encode import decode, effective

_FIX = "run `qdqtool calibrate` on this model"


def with_changes(model: Model, changes: WeightChanges) -> Model:
    """The model with changed constants and scaled inputs.

    Rounded weights are written as the floats that their stored values stand for.

    Raises:
        InputFileError: a constant or node is not there, or has another shape.
    """
    edit = Edit(model)
    for name, value in changes.values.items():
        _check(edit, name, value.shape, model)
        edit.put(name, value)
    for name, entry in changes.rounded.items():
        _check(edit, name, entry.codes.shape, model)
        scale = effective(entry.scale, entry.global_scale)
        old = edit.value(name)
        assert old is not None
        edit.put(name, decode(entry.codes, scale, entry.axis, entry.block, old.dtype))
    nodes = {node.name: node for node in edit.nodes}
    for each in changes.scaled:
        kind = model.view.info(each.tensor).dtype
        factors = np.array(each.factors, np.float16 if kind.value == "fp16" else np.float32)
        scaled = edit.fresh(f"{each.tensor}_scaled")
        factor = edit.constant(f"{each.tensor}_factors", factors)
        for name in each.nodes:
            if name not in nodes or nodes[name].input[0] != each.tensor:
                what = f"has no node {name!r} that reads {each.tensor!r}"
                raise InputFileError(what, fix=_FIX, where=str(model.path))
            nodes[name].input[0] = scaled
        edit.node("Mul", [each.tensor, factor], [scaled], name=f"{each.tensor}_scale_channels")
    return edit.finish()


def unrounded(model: Model, table: CalibrationTable) -> Model:
    """The float model that was quantized with `table`: its channels are equalized, and nothing is rounded."""
    changes = table.weights or WeightChanges()
    return with_changes(model, replace(changes, rounded={})) if changes.values or changes.scaled else model


def _check(edit: Edit, name: str, shape: tuple[int, ...], model: Model) -> None:
    proto = edit.constants.get(name)
    if proto is None or tuple(proto.dims) != shape:
        what = f"has no constant {name!r} of shape {list(shape)}, which the calibration changed"
        raise InputFileError(what, fix=_FIX, where=str(model.path))
