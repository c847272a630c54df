"""Matrix products with fewer than 16 rows or columns of weights stay float.

    x [N, 128, 256] ── MatMul ── y [N, 128, 2]        no Q/DQ

INT8 matrix kernels work on tiles of 16: the rest of a tile is padding, and cutting it off again is a kernel. Such
products are heads with few classes, where rounding hurts most. Convolutions are padded without an extra kernel and
are not meant here (see `min_channels`), nor are heads behind the global average of a convolution, whose kernel does
the Q as well, nor weights alone (`place.activations: float`), whose arithmetic is float.

Evidence: RTX 1.7.1: a BERT of four blocks with a head of 2 classes has 47 kernels when the head is INT8 and 46 when
it is float; the heads of a CIFAR ResNet-20 (64 x 10) and of a DS-CNN (64 x 12), behind a global average, cost no
kernel and save 464 and 480 bytes. modelopt excludes K or N below 16 too.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.claims import ADDS_A_KERNEL
from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.patterns import is_pooled
from qdqtool.matching.products import channels, compute_nodes, skipping, veto
from qdqtool.matching.rule import Rule
from qdqtool.matching.small import TILE, is_narrow


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto matrix products with narrow weights."""
    if options.activations == "float":
        return
    for node in compute_nodes(view, "Gemm", "MatMul"):
        counts = channels(view, node)
        if counts is not None and is_narrow(counts) and not is_pooled(view, node.inputs[0]):
            yield from veto(
                node,
                f"its weights are {counts[0]} x {counts[1]}, less than a tile of {TILE}: INT8 adds a kernel",
                f"{skipping('narrow', options)} quantizes it all the same",
                ADDS_A_KERNEL,
            )


PLUGIN = Rule(code="QDQ174", place=place)
