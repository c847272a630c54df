"""Attention is one fused INT8 kernel when all four inputs of its two matrix products are quantized.

    before                                     after
    q ─ MatMul ─ scale ─ Softmax ─ MatMul      q ─ QDQ ─ MatMul ─ scale ─ Softmax ─ QDQ ─ MatMul
    k ──┘                    v ──────┘         k ─ QDQ ──┘                    v ─ QDQ ──────┘

The requests come from the MatMul rules; this rule only binds them: all four or none. The softmax result is part of
it although rounding it costs some accuracy: without it the fusion falls apart.

Evidence: RTX 1.7.1 makes `_gemm_mha_v2` with Int8 inputs out of the full pattern (sequence 16, 64, 65, 197): 8
kernels for a self-attention block against 9 for float FP16 and 11 to 14 when the softmax result is left float. Each
part alone gives two products with a softmax kernel between them. NVIDIA/TensorRT issue 3243 says the same of 8.x.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Bond
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.placement.patterns import attentions
from qdqtool.placement.weighted import factors


def PLUGIN(view: GraphView, options: PlacementOptions) -> Iterator[Bond]:  # noqa: N802, ARG001 -- the plug
    """Bind the two matrix products of every attention."""
    for scores, values in attentions(view):
        yield Bond(
            slots=(*factors(scores), *factors(values)),
            rule="attention",
            reason="a half-quantized attention cannot be fused into one kernel",
        )
