"""Queries, keys and values of an attention that one matrix product makes.

    MatMul ─ Add ─ Reshape ─ Transpose ─┬─ Gather 0 ─ Mul ──────── q ─┐
                                        ├─ Gather 1 ─ Transpose ── k ─┴ MatMul ─ Softmax ─ MatMul
                                        └─ Gather 2 ────────────── v ────────────────────────┘

TensorRT for RTX finds this pattern, splits the product into three that run as one, and gives each branch a kernel of its
own: bias, quantization and the new order of the values. Any other operator in a branch keeps it from doing so, and so
does Q/DQ on only one of queries and keys: then one kernel makes all three.

Evidence: RTX 1.7.1, twelve forms of one block, with and without Q/DQ, bias, factor, softmax and fusable heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.patterns import attentions
from qdqtool.trt.ops import FACTORS, LAYOUT, MATRIX_PRODUCTS, PICKING, QDQ, QUANTIZE

# Operators that are followed; what is further away is not taken for the same pattern.
_FARTHEST = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Branch:
    """The way from the product to one input of an attention.

    Attributes:
        product: what makes queries, keys and values.
        nodes: what is between, the bias included, Q last where there is one.
        quantized: whether there is a Q.
    """

    product: Node
    nodes: tuple[Node, ...]
    quantized: bool


def split_products(flow: Flow) -> Iterator[tuple[Branch, Branch, Branch]]:
    """The branches of every attention whose queries, keys and values the compiler makes apart."""
    view = flow.view
    for plain in attentions(flow.plain):
        scores, values = (view.by_name[node.name] for node in plain)
        inputs = (scores.inputs[0], scores.inputs[1], values.inputs[1])
        queries, keys, third = (_branch(view, tensor) for tensor in inputs)
        if queries is None or keys is None or third is None:
            continue
        alike = queries.quantized == keys.quantized and queries.quantized >= third.quantized
        if alike and queries.product.name == keys.product.name == third.product.name:
            yield queries, keys, third


def _branch(view: GraphView, tensor: str) -> Branch | None:
    """The way back from an input of an attention; None where it is not of this form."""
    nodes: list[Node] = []
    picked = biased = False
    for _ in range(_FARTHEST):
        node = view.producer(tensor)
        if node is None:
            return None
        if node.op in MATRIX_PRODUCTS:
            quantized = any(passed.op == QUANTIZE for passed in nodes)
            return Branch(product=node, nodes=tuple(reversed(nodes)), quantized=quantized) if picked else None
        moves = node.op in LAYOUT | PICKING | QDQ
        bias = node.op == "Add" and picked and not biased
        values = [name for name in node.inputs[: 1 if moves else 2] if not view.is_constant(name)]
        if len(values) != 1 or not (moves or _scales(view, node) or bias):
            return None
        picked, biased = picked or node.op in PICKING, biased or bias
        nodes.append(node)
        tensor = values[0]
    return None


def _scales(view: GraphView, node: Node) -> bool:
    """Whether a node multiplies all values by one constant."""
    constants = [view.info(name).shape for name in node.inputs if view.is_constant(name)]
    return node.op in FACTORS and len(constants) == 1 and all(size == 1 for size in constants[0] or ())
