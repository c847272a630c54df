"""Matrix products with fewer than 16 rows or columns of weights stay float.

    x [N, 128, 256] ── MatMul ── y [N, 128, 2]        no Q/DQ

INT8 matrix kernels work on tiles of 16: the rest of a tile is padding, and cutting it off again can be a kernel, as can
the Q in front. Such products are heads with few classes, where rounding hurts most. Whether INT8 costs a kernel depends on
what is around the product: the audit builds it and prints the result with the fix. The rule does not apply to:

- convolutions, which are padded without an extra kernel (see `min_channels`);
- heads behind the global average of a convolution, whose kernel does the Q as well;
- products whose input a wider product reads too, because these values are quantized anyway;
- stacks of matrices, such as the constant keys that learned queries give an attention;
- weights alone (`place.activations: float`), whose arithmetic is float.

Evidence: RTX 1.7.1: a BERT of four blocks with a head of 2 classes has 47 kernels when the head is INT8 and 46 when
it is float; the heads of a CIFAR ResNet-20 (64 x 10) and of a DS-CNN (64 x 12), behind a global average, cost no
kernel and save 464 and 480 bytes. modelopt excludes K or N below 16 too.
A router (64 x 4) and a head (64 x 6) whose input a wider product reads: 1 kernel fewer and as many, 4 % and 1 % fewer bytes; the
constant keys of learned queries (16 x 12): 3 kernels and 17 % of the bytes fewer. Alone on its input a product costs 1 or 2 kernels
in 5 of 6 cases of the same networks, and none in the sixth.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.patterns import is_pooled
from qdqtool.matching.products import compute_nodes, skipping, veto
from qdqtool.matching.rule import Rule
from qdqtool.matching.small import TILE, narrow_weights


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto matrix products with narrow weights."""
    if options.activations == "float":
        return
    for node in compute_nodes(view, "Gemm", "MatMul"):
        counts = narrow_weights(view, node)
        if counts is not None and not is_pooled(view, node.inputs[0]):
            yield from veto(
                node,
                f"its weights are {counts[0]} x {counts[1]}, less than a tile of {TILE}, and only INT8 here would quantize its input",
                f"{skipping('narrow', options)} quantizes it all the same",
            )


PLUGIN = Rule(code="QDQ174", place=place)
