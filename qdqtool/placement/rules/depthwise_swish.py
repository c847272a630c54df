"""For TensorRT 8 a depthwise convolution with a Swish behind it stays float.

    x ─ depthwise Conv ─┬─ Sigmoid ─┐
                        └────────── Mul ─ QDQ ─ Conv

TensorRT 8 fuses the convolution, the Swish and the Q behind it into one layer for which no INT8 kernel exists, and the
build ends with "could not find any implementation". The convolution costs little in float; all others stay INT8.

Evidence: NVIDIA/TensorRT issue 3385 (8.5.2); NVIDIA/Model-Optimizer issue 50 (builds with 10). RTX 1.7.1 runs it in
INT8.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.placement.patterns import depthwise_swish
from qdqtool.placement.weighted import compute_nodes, veto


def PLUGIN(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:  # noqa: N802 -- the plug
    """Veto such convolutions."""
    if options.builder.family != "8":
        return
    for node in compute_nodes(view):
        if depthwise_swish(view, node) is not None:
            yield from veto(
                node,
                "depthwise_swish",
                "TensorRT 8 has no INT8 kernel for a depthwise convolution with a Swish behind it",
                "build with TensorRT 10 or newer",
            )
