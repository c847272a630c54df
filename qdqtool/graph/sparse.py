"""Overwrites weights with the 2:4 pattern of sparse tensor cores: two of four neighbors along the sum become zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.wording import counted
from qdqtool.graph.edit import Edit
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.view import GraphView, Node

if TYPE_CHECKING:
    from numpy.typing import NDArray

_GROUP, _KEPT = 4, 2


def sparsify(model: Model) -> tuple[Model, tuple[str, ...]]:
    """Return the model with the weights of Conv, Gemm and MatMul in the 2:4 pattern, and the names of the changed constants.

    The two largest of every four neighbours along the summed dimension stay, Q/DQ before a weight or not; a rest of
    less than four stays whole. What such a model computes is meaningless; how fast it runs is not. Source of the
    pattern: the 2:4 sparsity of NVIDIA's tensor cores from Ampere on, along the input channels.
    """
    view = model.view
    axes = {
        name: axis
        for node in view.nodes
        if (axis := _summed(node, view)) is not None and (name := _weight(node, view))
    }
    edit = Edit(model)
    for name, axis in axes.items():
        value = edit.value(name)
        assert value is not None
        edit.put(name, _pruned(value, axis))
    edit.notes.append(
        f"{counted(len(axes), 'weight was', 'weights were')} overwritten with the 2:4 pattern: results are meaningless"
    )
    return edit.finish(), tuple(sorted(axes))


def _summed(node: Node, view: GraphView) -> int | None:
    """Return the dimension of input 1 that the node sums over; None if unknown."""
    if node.op == "Conv":
        return 1
    if node.op == "Gemm":
        return 1 if node.attribute("transB", 0) else 0
    shape = view.info(node.inputs[1]).shape if node.op == "MatMul" else None
    return len(shape) - 2 if shape is not None and len(shape) > 1 else None


def _weight(node: Node, view: GraphView) -> str:
    """Return the constant that input 1 comes from, through Q/DQ; "" if there is none."""
    name = node.inputs[1]
    while not view.is_constant(name):
        maker = view.producer(name)
        if maker is None or maker.op not in {QUANTIZE, DEQUANTIZE}:
            return ""
        name = maker.inputs[0]
    return name


def _pruned(value: NDArray[Any], axis: int) -> NDArray[Any]:
    lines = np.moveaxis(value, axis, -1).copy()
    whole = lines.shape[-1] // _GROUP * _GROUP
    groups = lines[..., :whole].reshape(*lines.shape[:-1], -1, _GROUP)
    order = np.argsort(np.abs(groups.astype(np.float64)), axis=-1, kind="stable")
    np.put_along_axis(groups, order[..., : _GROUP - _KEPT], 0, axis=-1)
    lines[..., :whole] = groups.reshape(*lines.shape[:-1], whole)
    return np.moveaxis(lines, -1, axis)
