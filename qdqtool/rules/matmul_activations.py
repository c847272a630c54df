"""MatMul of two activations: both quantized, or neither.

    before                  after
    a ── MatMul ── y        a ─ Q ─ DQ ─ MatMul ── y
    b ───┘                  b ─ Q ─ DQ ───┘

Evidence: RTX 1.7.1 builds an INT8 `gemm` for two quantized activations and a float one, behind an extra
quantize-dequantize kernel, for one of them (matmul_two_act, matmul_one_q).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Bond, Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.products import both_or_neither, compute_nodes
from qdqtool.matching.rule import Rule


def place(view: GraphView, _options: PlacementOptions) -> Iterator[Opinion | Bond]:
    """Both inputs of every MatMul without a constant."""
    for node in compute_nodes(view, "MatMul"):
        if any(view.is_constant(tensor) for tensor in node.inputs):
            continue
        yield from both_or_neither(
            node,
            {},
            reason="a product of two activations computes in INT8 when both are quantized",
            alone="with one activation quantized the product computes in float",
        )


PLUGIN = Rule(code="QDQ171", place=place)
