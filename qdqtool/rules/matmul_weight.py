"""MatMul with one constant factor: activation per tensor, weight per output channel.

    before                    after
    x ── MatMul ── y          x ─ Q ─ DQ ─ MatMul ── y
    W ───┘                    W ─ Q ─ DQ ───┘      (last axis; next to last where the weight comes first)

The bias Add behind it stays float: it fuses into the epilogue.

Evidence: RTX 1.7.1 builds one INT8 `gemm` (matmul_w, also with K=17, N=33 and M=1, with batched weights, and with
the weight on the first input); scales along K give `CastMulFc`, which is float (matmul_w_axis0); a weight or an
activation alone is float (matmul_w_only, matmul_a_only).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Bond, Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.products import both_or_neither, compute_nodes, weight_specs
from qdqtool.matching.rule import Rule


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion | Bond]:
    """Both factors of every MatMul that has exactly one constant."""
    specs = weight_specs(view, options)
    for node in compute_nodes(view, "MatMul"):
        if view.is_constant(node.inputs[0]) == view.is_constant(node.inputs[1]):
            continue
        yield from both_or_neither(
            node,
            specs,
            reason="a matrix product computes in INT8 when activation and weight are quantized",
            alone="with only one of activation and weight quantized a matrix product computes in float",
        )


PLUGIN = Rule(code="QDQ172", place=place)
