"""Writes the changes that calibration made to constants into the model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.commands import Command
from qdqtool.core.weights import ScaledInput, WeightChanges
from qdqtool.errors import InputFileError
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.encode import decode, effective

_FIX = f"run {Command('calibrate')} on this model"


def with_changes(model: Model, changes: WeightChanges) -> Model:
    """Return the model with changed constants and scaled inputs.

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
    for each in changes.scaled:
        _scale(edit, each, model)
    return edit.finish()


def _scale(edit: Edit, each: ScaledInput, model: Model) -> None:
    """Insert a Mul by the factors before the nodes."""
    nodes = {node.name: node for node in edit.nodes}
    for name in each.nodes:
        if name not in nodes or nodes[name].input[0] != each.tensor:
            what = f"has no node {name!r} that reads {each.tensor!r}"
            raise InputFileError(what, fix=_FIX, where=str(model.path))
    kind = model.view.info(each.tensor).dtype
    factors = np.array(each.factors, np.float16 if kind.value == "fp16" else np.float32)
    name = f"{each.tensor}_scale_channels"
    if each.axis == -1:
        scaled = edit.fresh(f"{each.tensor}_scaled")
        for node in each.nodes:
            nodes[node].input[0] = scaled
        edit.node("Mul", [each.tensor, edit.constant(f"{each.tensor}_factors", factors)], [scaled], name=name)
        return
    rank = len(model.view.info(each.tensor).shape or ())
    maker = model.view.producer(each.tensor)
    if maker is None or rank <= each.axis:
        what = f"has no node that produces {each.tensor!r}, or its shape is unknown"
        raise InputFileError(what, fix=_FIX, where=str(model.path))
    factor = edit.constant(f"{each.tensor}_factors", factors.reshape(-1, *([1] * (rank - 1 - each.axis))))
    whole = edit.fresh(f"{each.tensor}_whole")
    outputs = nodes[maker.name].output
    outputs[list(outputs).index(each.tensor)] = whole
    edit.node("Mul", [whole, factor], [each.tensor], name=name)


def unrounded(model: Model, table: CalibrationTable) -> Model:
    """Return the float model that was quantized with `table`: channels are equalized, and nothing is rounded."""
    changes = table.weights or WeightChanges()
    return with_changes(model, replace(changes, rounded={})) if changes.values or changes.scaled else model


def _check(edit: Edit, name: str, shape: tuple[int, ...], model: Model) -> None:
    proto = edit.constants.get(name)
    if proto is None or tuple(proto.dims) != shape:
        what = f"has no constant {name!r} of shape {list(shape)}, which the calibration changed"
        raise InputFileError(what, fix=_FIX, where=str(model.path))
