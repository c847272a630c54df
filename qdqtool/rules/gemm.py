"""Fully connected layers (Gemm) compute in INT8 when both matrices are quantized.

    before                  after
    x ── Gemm ── y          x ─ Q ─ DQ ─ Gemm ── y
    W ───┘                  W ─ Q ─ DQ ───┘        (one scale per output: axis 0 with transB, else axis 1)

Evidence: RTX 1.7.1 builds one INT8 `gemm` for transB 0 and 1; scales on the other axis give `CastMulFc`, a
dequantize inside a float product (gemm_q, matmul_w_axis0).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Bond, Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.products import both_or_neither, compute_nodes, weight_specs
from qdqtool.matching.rule import Rule


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion | Bond]:
    """Both factors, constants per output channel."""
    specs = weight_specs(view, options)
    for node in compute_nodes(view, "Gemm"):
        yield from both_or_neither(
            node,
            specs,
            reason="a matrix product computes in INT8 when both factors are quantized",
            alone="with only one factor quantized a matrix product computes in float",
        )


PLUGIN = Rule(code="QDQ169", place=place)
