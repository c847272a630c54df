"""Shifts the biases of Conv, ConvTranspose and Gemm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx

from qdqtool.core.calibration import NodeShift
from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.onnx_io.skeleton import declaration
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import BIASED

BIAS = 2
"""Number of the bias input."""


def shiftable(view: GraphView) -> tuple[Node, ...]:
    """Return nodes in graph order whose bias is absent or constant, and is not scaled (`beta` is 1)."""
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
                f"has no layer called {entry.node!r} whose bias could be shifted",
                fix="measure the shifts on this model again",
                where=str(model.path),
            )
        _shift(edit, node, np.asarray(entry.shift, np.float32), _element_type(model, edit, node.input[1]))
    edit.prune()
    return edit.finish()


def _shift(
    edit: Edit, node: onnx.NodeProto, shift: np.ndarray[Any, np.dtype[np.float32]], kind: np.dtype[Any]
) -> None:
    """Give `node` a separate bias, increased by `shift`; `kind` is the element type of its other inputs."""
    has_bias = len(node.input) > BIAS and bool(node.input[BIAS])
    old = edit.value(node.input[BIAS]) if has_bias else np.zeros(shift.shape, kind)
    if old is None or old.size not in {1, shift.size}:
        raise InputFileError(
            f"the bias of {node.name!r} does not have {counted(shift.size, 'value')}",
            fix="measure the shifts on this model again",
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
    return value is not None and value.dtype.kind == "f" and max(value.shape, default=1) == value.size
