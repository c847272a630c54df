"""Finds compute nodes that have Q/DQ on one input only."""

from __future__ import annotations

from qdqtool.graph.find import DEQUANTIZE
from qdqtool.graph.normalize.bench import MOVES, WEIGHTED
from qdqtool.graph.view import GraphView, Node


def half_quantized(view: GraphView, node: Node) -> tuple[int, ...]:
    """The float inputs of a compute node whose other input is quantized."""
    if node.op not in WEIGHTED:
        return ()
    quantized = [_is_quantized(view, name) for name in node.inputs[:2]]
    return tuple(index for index, known in enumerate(quantized) if not known) if any(quantized) else ()


def _is_quantized(view: GraphView, tensor: str) -> bool:
    """Whether the tensor comes out of a pair, directly or through operators that integers pass."""
    maker = view.producer(tensor)
    while maker is not None and maker.op in MOVES | {"MaxPool"}:
        maker = view.producer(maker.inputs[0])
    if maker is not None and maker.op == "Concat":
        return all(_is_quantized(view, name) for name in maker.inputs)
    return maker is not None and maker.op == DEQUANTIZE
