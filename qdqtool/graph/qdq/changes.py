"""Writes the changes that calibration made to weights and biases into the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx

from qdqtool.core.calibration import CalibrationTable, NodeShift
from qdqtool.core.weights import ScaledInput, WeightChanges
from qdqtool.core.wording import Command, count_noun
from qdqtool.errors import InputFileError
from qdqtool.graph.edit import Edit
from qdqtool.graph.onnx_io.walk import declaration
from qdqtool.graph.qdq.encode import decode, effective
from qdqtool.graph.view import GraphView, Model, Node
from qdqtool.trt.ops import BIASED

# --- bias ------------------------------------------------------------------------------------------------------------
# Shifts the biases of Conv, ConvTranspose and Gemm.


BIAS = 2
"""Number of the bias input."""


def shiftable(view: GraphView) -> tuple[Node, ...]:
    """Return the nodes that a bias shift can change: the bias is absent or constant, and `beta` is 1."""
    return tuple(
        node
        for node in view.nodes
        if node.op in BIASED and node.attribute("beta", 1.0) == 1.0 and _has_plain_bias(view, node)
    )


def shift_biases(model: Model, shifts: Iterable[NodeShift]) -> Model:
    """Return the model with each shift added to the bias of its node; a node without a bias gets one.

    Raises:
        InputFileError: a node is not there, or has another number of channels.
    """
    edit = Edit(model)
    nodes = {node.name: node for node in edit.nodes}
    for entry in shifts:
        node = nodes.get(entry.node)
        if node is None or node.op_type not in BIASED:
            raise InputFileError(
                f"the model has no layer called {entry.node!r} whose bias could be shifted",
                fix="measure the bias corrections on this model again",
                where=str(model.path),
            )
        _shift(edit, node, np.asarray(entry.shift, np.float32), _element_type(model, edit, node.input[1]))
    edit.prune()
    return edit.finish()


def _shift(
    edit: Edit, node: onnx.NodeProto, shift: np.ndarray[Any, np.dtype[np.float32]], kind: np.dtype[Any]
) -> None:
    """Give `node` its own bias, increased by `shift`; `kind` is the element type of its other inputs."""
    has_bias = len(node.input) > BIAS and bool(node.input[BIAS])
    old = edit.value(node.input[BIAS]) if has_bias else np.zeros(shift.shape, kind)
    if old is None or old.size not in {1, shift.size}:
        raise InputFileError(
            f"the bias of layer {node.name!r} does not have {count_noun(shift.size, 'value')}, the size of its bias correction",
            fix="measure the bias corrections on this model again",
        )
    new = (old.astype(np.float32).reshape(-1) + shift).astype(old.dtype)
    name = edit.constant(f"{node.name}_shifted_bias", new)
    if has_bias:
        node.input[BIAS] = name
    else:
        del node.input[BIAS:]
        node.input.append(name)


def _element_type(model: Model, edit: Edit, tensor: str) -> np.dtype[Any]:
    """Return the NumPy type of a tensor's elements; FP32 if the model does not declare it."""
    stored = edit.constants.get(tensor)
    kind = declaration(model.proto, tensor).type.tensor_type.elem_type if stored is None else stored.data_type
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind or onnx.TensorProto.FLOAT))


def _has_plain_bias(view: GraphView, node: Node) -> bool:
    if len(node.inputs) <= BIAS or not node.inputs[BIAS]:
        return True
    value = view.constant(node.inputs[BIAS])
    return value is not None and value.dtype.kind == "f" and value.shape[-1:] in {(), (value.size,)}


# --- changes ---------------------------------------------------------------------------------------------------------


_FIX = f"run {Command('calibrate')} on this model"


def with_changes(model: Model, changes: WeightChanges) -> Model:
    """Return the model with the changed constants and scaled inputs of a calibration table.

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
    """Insert a Mul by the factors before the nodes. Its result has the tensor's name, so that a placement stays valid."""
    nodes = {node.name: node for node in edit.nodes}
    for name in each.nodes:
        if name not in nodes or nodes[name].input[0] != each.tensor:
            problem = f"the model has no node {name!r} that reads {each.tensor!r}"
            raise InputFileError(problem, fix=_FIX, where=str(model.path))
    kind = model.view.info(each.tensor).dtype
    factors = np.array(each.factors, np.float16 if kind.value == "fp16" else np.float32)
    name = f"{each.tensor}_scale_channels"
    maker = model.view.producer(each.tensor)
    if maker is None and each.axis == -1:  # an input of the model must keep its name
        scaled = edit.fresh(f"{each.tensor}_scaled")
        for node in each.nodes:
            nodes[node].input[0] = scaled
        edit.node("Mul", [each.tensor, edit.constant(f"{each.tensor}_factors", factors)], [scaled], name=name)
        return
    rank = len(model.view.info(each.tensor).shape or ())
    if maker is None or rank <= each.axis:
        problem = f"the model has no node that produces {each.tensor!r}, or its shape is unknown"
        raise InputFileError(problem, fix=_FIX, where=str(model.path))
    if each.axis != -1:
        factors = factors.reshape(-1, *([1] * (rank - 1 - each.axis)))
    factor = edit.constant(f"{each.tensor}_factors", factors)
    whole = edit.fresh(f"{each.tensor}_whole")
    outputs = nodes[maker.name].output
    outputs[list(outputs).index(each.tensor)] = whole
    for node in edit.nodes:
        if node.name not in each.nodes:
            for place, tensor in enumerate(node.input):
                if tensor == each.tensor:
                    node.input[place] = whole
    edit.node("Mul", [whole, factor], [each.tensor], name=name)


def undo_rounding(model: Model, table: CalibrationTable) -> Model:
    """Return the float model that was quantized with `table`: with equalized channels, but unrounded weights."""
    changes = table.weights or WeightChanges()
    return with_changes(model, replace(changes, rounded={})) if changes.values or changes.scaled else model


def _check(edit: Edit, name: str, shape: tuple[int, ...], model: Model) -> None:
    proto = edit.constants.get(name)
    if proto is None or tuple(proto.dims) != shape:
        problem = f"the model has no constant {name!r} of shape {list(shape)}, which the calibration changed"
        raise InputFileError(problem, fix=_FIX, where=str(model.path))
