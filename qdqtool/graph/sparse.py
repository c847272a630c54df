"""The 2:4 pattern of sparse tensor cores: finds it in weights, and writes it into weights.

In such weights at least two of every four neighbors along the summed dimension are zero. Source: the sparsity of NVIDIA's
tensor cores from Ampere on, along the input channels; TensorRT looks for it with `--sparsity=enable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.wording import count_noun
from qdqtool.graph.edit import Edit
from qdqtool.graph.qdq.find import DEQUANTIZE, QUANTIZE
from qdqtool.graph.view import GraphView, Model, Node

_GROUP, _KEPT = 4, 2
SPARSE_FROM: Final = 80
"""Compute capability of the first GPUs with sparse tensor cores."""
ENABLED: Final = "--sparsity=enable"
"""Option of trtexec with which TensorRT looks for the pattern."""
_LEAST: Final = 0.3
"""Smallest share of other values: pruned weights have a half, matrices of filters and masks almost none."""
_MOST: Final = 1 << 30
"""Bytes of weights from which the pattern is not searched, because all weights would be read from their files."""


def has_pattern(value: NDArray[Any], axis: int) -> bool:
    """Return True if at least 2 of every 4 neighbors along an axis are zero, and at least 30 % are not."""
    length = value.shape[axis] if value.ndim > axis else 0
    if length < _GROUP or length % _GROUP:
        return False
    lines = np.moveaxis(value, axis, -1)
    # a small part is enough for most weights, which have no zeros
    parts = (lines.reshape(-1, length)[:_GROUP], lines)
    return (
        all(bool(((part.reshape(-1, _GROUP) != 0).sum(axis=-1) <= _KEPT).all()) for part in parts)
        and int(np.count_nonzero(value)) >= _LEAST * value.size
    )


def sparse_nodes(view: GraphView) -> tuple[str, ...]:
    """Return the Conv, Gemm and MatMul nodes whose constant weights have the 2:4 pattern.

    The result is empty for models of 1 GiB and more, because all weights would have to be read.
    """
    chosen = []
    for node in view.nodes:
        axis = _find_summed_dim(node, view) if len(node.inputs) > 1 else None
        name = "" if axis is None else _weight(node, view)
        if axis is not None and name:
            chosen.append((node.name, name, axis))
    if sum(prod(view.constant_shape(name) or ()) for _, name, _ in chosen) >= _MOST // 4:
        return ()
    sparse = []
    for node_name, name, axis in chosen:
        value = view.constant(name)
        if value is not None and has_pattern(value, axis):
            sparse.append(node_name)
    return tuple(sparse)


def sparsity_words(nodes: Sequence[str]) -> str:
    """Return the sentence that names nodes with sparse weights."""
    return (
        f"{count_noun(len(nodes), 'compute node has', 'compute nodes have')} weights in the 2:4 pattern ({nodes[0]}"
        f"{', ...' if len(nodes) > 1 else ''}): with {ENABLED} TensorRT may use sparse tensor cores from SM80 on"
    )


def sparsify(model: Model) -> tuple[Model, tuple[str, ...]]:
    """Return the model with the weights of Conv, Gemm and MatMul in the 2:4 pattern, and the names of the changed constants.

    In every four neighbours along the summed dimension, the two largest stay, also if the weight has Q/DQ; a rest of
    fewer than four is unchanged. The outputs of such a model are meaningless, but its speed is not.
    """
    view = model.view
    axes = {
        name: axis
        for node in view.nodes
        if (axis := _find_summed_dim(node, view)) is not None and (name := _weight(node, view))
    }
    edit = Edit(model)
    for name, axis in axes.items():
        value = edit.value(name)
        assert value is not None
        edit.put(name, _prune_value(value, axis))
    edit.notes.append(
        f"{count_noun(len(axes), 'weight was', 'weights were')} overwritten with the 2:4 pattern: results are meaningless"
    )
    return edit.finish(), tuple(sorted(axes))


def _find_summed_dim(node: Node, view: GraphView) -> int | None:
    """Return the dimension of input 1 that the node sums over; None if unknown."""
    if node.op == "Conv":
        return 1
    if node.op == "Gemm":
        return 1 if node.attribute("transB", 0) else 0
    shape = view.info(node.inputs[1]).shape if node.op == "MatMul" else None
    return len(shape) - 2 if shape is not None and len(shape) > 1 else None


def _weight(node: Node, view: GraphView) -> str:
    """Return the constant behind input 1 of a node, through Q/DQ; "" if there is none."""
    name = node.inputs[1]
    while not view.is_constant(name):
        maker = view.producer(name)
        if maker is None or maker.op not in {QUANTIZE, DEQUANTIZE}:
            return ""
        name = maker.inputs[0]
    return name


def _prune_value(value: NDArray[Any], axis: int) -> NDArray[Any]:
    lines = np.moveaxis(value, axis, -1).copy()
    whole = lines.shape[-1] // _GROUP * _GROUP
    groups = lines[..., :whole].reshape(*lines.shape[:-1], -1, _GROUP)
    order = np.argsort(np.abs(groups.astype(np.float64)), axis=-1, kind="stable")
    np.put_along_axis(groups, order[..., : _GROUP - _KEPT], 0, axis=-1)
    lines[..., :whole] = groups.reshape(*lines.shape[:-1], whole)
    return np.moveaxis(lines, -1, axis)
