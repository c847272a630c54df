"""Layers with few channels can be kept float: INT8 kernels pad them, and there is little to win.

    place:
      min_channels: 16       weighted nodes with fewer input or output channels stay float

The first layer is excepted: its input channels are the picture's colours. Depthwise convolutions count all their
channels.

Evidence: RTX 1.7.1 builds INT8 for every channel count and pads to multiples of 4 (conv_ci3_co64, conv_ci5_co7,
matmul_k17_n33), so the default is 0; modelopt excludes fewer than 16.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import setting
from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.products import channels, compute_nodes, veto
from qdqtool.matching.rule import Rule


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto weighted nodes below the recipe's limit."""
    if not options.min_channels:
        return
    fed = {info.name for info in view.inputs}
    for node in compute_nodes(view):
        counts = channels(view, node)
        if counts is None:
            continue
        narrowest = counts[1] if node.inputs[0] in fed else min(counts)
        if narrowest < options.min_channels:
            yield from veto(
                node,
                f"it has {narrowest} channels, fewer than place.min_channels={options.min_channels}",
                f"{setting('place.min_channels', str(narrowest))} quantizes it, and all that are as wide",
            )


PLUGIN = Rule(code="QDQ173", place=place)
