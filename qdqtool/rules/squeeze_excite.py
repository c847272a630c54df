"""Squeeze-and-excite gates stay float.

    x ─┬─ GlobalAveragePool ─ Conv ─ SiLU ─ Conv ─ Sigmoid ─┐       no Q/DQ on the two small Convs
       └────────────────────────────────────────────────── Mul ─ QDQ ─ Conv

The two layers work on one value per channel: nothing to gain, and every Q is a kernel of its own.

Evidence: RTX 1.7.1: an excite block takes 10 kernels with both Convs in INT8 and 8 with both float, at the same
1.18 MB. Set `place.skip_rules: [squeeze_excite]` to quantize them all the same. The second Conv runs INT8 then from 5
squeezed channels on; with fewer, and one sample, it is computed in a generated kernel with its neighbours (`small_product`).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.claims import ADDS_A_KERNEL
from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.patterns import gates
from qdqtool.matching.products import skipping, veto
from qdqtool.matching.rule import Rule
from qdqtool.matching.small import setting_for
from qdqtool.trt.ops import PRODUCTS


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto the weighted nodes between the pooling and the gating Mul."""
    for gate in gates(view):
        for node in gate:
            if node.op in PRODUCTS:
                yield from veto(
                    node,
                    "it computes a squeeze-and-excite gate, one value per channel: INT8 only adds kernels",
                    setting_for(view, node, f"{skipping('squeeze_excite', options)} quantizes gates too"),
                    ADDS_A_KERNEL,
                )


PLUGIN = Rule(code="QDQ179", place=place)
