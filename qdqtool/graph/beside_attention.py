"""MatMuls beside an attention: the MatMul that computes queries, keys and values, and the MatMul that reads the result.

    x ─ MatMul ─ Add ─ Split ─┬─ q ─┬ MatMul ─ Softmax ─┐
                              ├─ k ─┘                   ├ MatMul ─ Transpose ─ Reshape ─ MatMul
                              └─ v ─────────────────────┘

TensorRT for RTX splits the first MatMul into three kernels by cutting and rearranging its weight [K, 3N]. It does so
with float weights and with weights before a Q. If the weight is stored in a low-bit format with one scale per column,
before a DequantizeLinear only, the builder first converts the weight to float. The kernel of the second MatMul does
not dequantize weights of any format if it reads more than one row and its input has more than two dimensions.

Evidence: RTX 1.7.1 for SM86, 89 and 120, 80 graphs. The builder splits the first MatMul in two cases, with and
without bias, softmax and Q/DQ on the attention:

- Three equal parts of the columns. Each part passes a Reshape or Squeeze and a Transpose, and the consumer may be any
  node (Split ─ Reshape ─ Transpose; Reshape ─ Slice ─ Squeeze ─ Transpose).
- Two or three parts that are selected after a Reshape and a Transpose, if only layout operators and one factor follow
  before the MatMuls of an attention.

The builder does not split: two, four or unequal parts in the first case, an activation between Reshape and Transpose,
(heads, 3, size), a norm or a rotation after the Gather, gates (Split ─ Sigmoid ─ Mul). A weight with a single scale,
and INT4 blocks, are cut without a conversion to float. The second MatMul was built with weights of 64x64 to 768x768
and 2 to 1024 rows, in INT4 and INT8, after fused and other attentions. With a Relu, a Mul or a Reshape to two
dimensions before the MatMul, the kernel dequantizes the weight itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from qdqtool.graph.products import has_weights
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import CASTS, LAYOUT, MATRIX_PRODUCTS, PASSES_PROBABILITIES, PICKING, QDQ, SHAPE_READERS

FACTORS = frozenset({"Div", "Mul"})
"""Elementwise operators that scale a value."""


# Number of operators that are followed; operators further away are not part of the pattern.
_FARTHEST = 12
# Queries, keys and values.
_THREE = 3
_PASSED = QDQ | CASTS


def is_split(view: GraphView, node: Node) -> bool:
    """Return True if one MatMul computes queries, keys and values together, so that the builder splits its weight."""
    if node.op not in MATRIX_PRODUCTS or not node.outputs:
        return False
    tensor = node.outputs[0]
    axis, turned = len(view.info(tensor).shape or ()) - 1, False
    for _ in range(_FARTHEST):
        uses = [use for use in view.uses(tensor) if use.node.op not in SHAPE_READERS]
        if axis < 0 or not uses:
            return False
        if all(use.node.op in PICKING for use in uses):
            parts = tuple(_parts(view, [use.node for use in uses], axis))
            if turned:
                return len(parts) > 1 and all(is_factor(view, part) for part in parts)
            alike = len({view.info(part).shape for part in parts}) == 1
            return len(parts) == _THREE and alike and all(_is_turned(view, part) for part in parts)
        reader = uses[0].node
        if len(uses) > 1 or not (_is_bias(view, reader) or reader.op in LAYOUT | _PASSED):
            return False
        axis, turned = _follow_axis(view, reader, axis), turned or reader.op == "Transpose"
        tensor = reader.outputs[0]
    return False


def reads_attention(view: GraphView, node: Node) -> bool:
    """Return True if a MatMul reads the result of an attention.

    Only operators that move values are in between, and the tensors on the way do not have two dimensions.
    """
    if node.op not in MATRIX_PRODUCTS:
        return False
    values, ranks = _origin(view, node.inputs[0], LAYOUT | _PASSED)
    if values is None or values.op != "MatMul" or has_weights(view, values) or 2 in ranks:
        return False
    source, _ = _origin(view, values.inputs[0], LAYOUT | PASSES_PROBABILITIES | _PASSED)
    return source is not None and source.op == "Softmax"


def _origin(view: GraphView, tensor: str, passed: frozenset[str]) -> tuple[Node | None, set[int]]:
    """Return the node that computes the values of a tensor, and the ranks of the tensors between the node and this tensor."""
    ranks: set[int] = set()
    for _ in range(_FARTHEST):
        ranks.add(len(view.info(tensor).shape or ()))
        node = view.producer(tensor)
        if node is None or node.op not in passed:
            return node, ranks
        # A Where chooses between probabilities and a constant; its first input is the condition.
        values = [name for name in node.inputs[node.op == "Where" :] if not view.is_constant(name)]
        tensor = values[0] if values else node.inputs[0]
    return None, ranks


def _is_bias(view: GraphView, node: Node) -> bool:
    return node.op == "Add" and any(view.is_constant(name) for name in node.inputs)


def _follow_axis(view: GraphView, node: Node, axis: int) -> int:
    """Return the axis of a node's output that corresponds to the columns of a weight matrix; -1 if unknown.

    If the columns were reshaped into several axes, it is the outermost of them.
    """
    if node.op == "Transpose":
        rank = len(view.info(node.outputs[0]).shape or ())
        order = [int(step) for step in node.attribute("perm", range(rank)[::-1])]
        return order.index(axis) if axis in order else -1
    if node.op not in LAYOUT:
        return axis
    before, after = view.info(node.inputs[0]).shape or (), view.info(node.outputs[0]).shape or ()
    if axis != len(before) - 1:
        return -1  # already cut; moved once more
    for first in reversed(range(len(after))):
        sizes = [size for size in after[first:] if isinstance(size, int)]
        if len(sizes) == len(after) - first and prod(sizes) == before[axis]:
            return first
    return -1


def _parts(view: GraphView, picks: list[Node], axis: int) -> Iterator[str]:
    """Yield the outputs of nodes that pick parts along `axis`; nothing if a node picks along another axis."""
    if all(_picked_axis(view, pick) == axis for pick in picks):
        for pick in picks:
            yield from (name for name in pick.outputs if name)


def _picked_axis(view: GraphView, node: Node) -> int | None:
    rank = len(view.info(node.inputs[0]).shape or ())
    if node.op != "Slice":
        axis = node.integer("axis", 0)
    else:
        axes = view.constant(node.inputs[3]) if len(node.inputs) > 3 else np.arange(1)
        if axes is None or axes.size != 1:
            return None
        axis = int(axes.reshape(-1)[0])
    return axis % rank if rank else None


def _is_turned(view: GraphView, tensor: str) -> bool:
    """Return True if a tensor is reshaped and then transposed, and has no other consumer."""
    for moves in range(_FARTHEST):
        uses = [use.node for use in view.uses(tensor) if use.node.op not in SHAPE_READERS]
        if len(uses) != 1 or uses[0].op not in LAYOUT:
            return False
        if uses[0].op == "Transpose":
            return moves > 0
        tensor = uses[0].outputs[0]
    return False


def is_factor(view: GraphView, tensor: str) -> bool:
    """Return True if a MatMul of two run-time values reads a tensor: directly, or after layout operators and constant scaling."""
    waiting, visited = [tensor], set[str]()
    while waiting and len(visited) < _FARTHEST:
        for use in view.uses(waiting.pop()):
            node = use.node
            scaled = node.op in FACTORS and any(view.is_constant(name) for name in node.inputs)
            if node.op in MATRIX_PRODUCTS and not has_weights(view, node):
                return True
            if node.name not in visited and (scaled or node.op in LAYOUT | _PASSED):
                visited.add(node.name)
                waiting.extend(node.outputs)
    return False
