"""Small products with one row stay float: the head of a transformer at batch 1, a gate, a matrix times a vector.

    x [1, 192] ── Gemm ── y [1, 1000]        no Q/DQ

There is next to nothing to compute, and the Q in front of it is a kernel of its own. Two cases are another matter:
large weights (2**18 and more), because reading them in INT8 takes a quarter of the time, and the head behind the
global average of a convolution, because the kernel that averages does the Q as well and then writes a quarter of the
bytes. A dynamic batch is no reason: only a static shape with one row counts.

Evidence: RTX 1.7.1 builds a ViT of four blocks with 51 kernels when its head (192 x 1000) is INT8 and with 49 when it
is float. Behind a global average an INT8 head writes no kernel more than the placements of modelopt and onnxruntime:
MobileNetV1 0.25 57 kernels, 8.196 MB against 8.197 MB with a float head. Set `place.skip_rules: [gemv]` to quantize all. Weights
alone (`place.activations: float`) need no Q in front, so this rule then says nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.claims import ADDS_A_KERNEL
from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.patterns import is_pooled
from qdqtool.matching.products import compute_nodes, skipping, veto
from qdqtool.matching.rule import Rule
from qdqtool.matching.small import is_one_vector, setting_for


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto products and 1x1 convolutions that work on a single position."""
    if options.activations == "float":
        return
    for node in compute_nodes(view, "Conv", "Gemm", "MatMul"):
        small = view.is_constant(node.inputs[1]) and is_one_vector(view, node)
        if small and not is_pooled(view, node.inputs[0]):
            yield from veto(
                node,
                "it multiplies a small matrix by one vector: INT8 saves no time and its Q is a kernel more",
                setting_for(view, node, f"{skipping('gemv', options)} quantizes it all the same"),
                ADDS_A_KERNEL,
            )


PLUGIN = Rule(code="QDQ170", place=place)
