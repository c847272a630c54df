"""Convolutions compute in INT8 when activation and weight are both quantized.

    before                  after
    x ── Conv ── y          x ─ Q ─ DQ ─ Conv ── y
    W ───┘                  W ─ Q ─ DQ ───┘        (one scale per output channel: axis 0)

Nothing goes on the output: bias, BatchNormalization and activation fuse into the Conv, and the next consumer's Q
fuses behind them. The bias stays float (an INT32 bias behind DQ does not parse).

Evidence: RTX 1.7.1 builds one INT8 `correlation` for 1-D, 2-D and 3-D, grouped, depthwise and odd-channel
convolutions (placement cases chain_ok, depthwise_q, group4_q, conv_ci5_co7). Without Q/DQ on the weights, or without
on the activation, it computes in float and keeps dequantize kernels (chain_noweight, chain_noact).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Bond, Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.products import both_or_neither, compute_nodes, weight_specs
from qdqtool.matching.rule import Rule


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion | Bond]:
    """Activation per tensor, weight per output channel, both or neither."""
    specs = weight_specs(view, options)
    for node in compute_nodes(view, "Conv"):
        yield from both_or_neither(
            node,
            specs,
            reason="a convolution computes in INT8 when input and weights are quantized",
            alone="with only one of input and weights quantized a convolution computes in float",
        )


PLUGIN = Rule(code="QDQ163", place=place)
