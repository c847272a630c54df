"""The residual stream of a network that normalizes what it adds up stays float.

    x ─┬─ QDQ ─ products ─┐                      no Q/DQ on the shortcut, although x is INT8 for the products
       └──────────────── Add ─ LayerNorm ─┬─ ...
                                          └─ ...

Every block adds its result to values that a LayerNormalization has made, as BERT, ALBERT and DeBERTa do (or, in Swin v2,
adds a normalized result). INT8 there rounds the stream once more in every block, and what a product makes is small
beside it. A float copy of the values is written beside the INT8 one; `QDQ219` says what it costs.

Evidence: bert, albert and deberta-v2 of two blocks (random weights, 64 tokens, RTX 1.7.1, SM86): the shortcuts in INT8
save 13 % of the activation bytes (1.72 -> 1.50 MiB, as many kernels), and the output of all three is far noisier. Networks
that add what convolutions make lose nothing (levit_128s and efficientvit_m0, both 9 % fewer bytes) and are not meant here. FP8 is no different: of a block with two
products of 256 channels in INT8 (SM89) and FP8 (SM89, SM120), with FP16 and FP32 around them, pairs on the shortcut, on what
is added to it, on both, on the sum, or none at all give the same five kernels with both products in their format (36 builds):
such a pair rounds, and saves no kernel. Behind LayerNormalization the quantization is part of its kernel in each of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Opinion, Slot, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.patterns import adds_to_normalized
from qdqtool.matching.products import skipping
from qdqtool.matching.rule import Rule


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto both inputs of every Add of a normalized residual stream."""
    for node in view.nodes:
        if adds_to_normalized(view, node):
            for index in (0, 1):
                yield Opinion(
                    slot=Slot(node=node.name, index=index),
                    stance=Stance.VETO,
                    reason="it adds to the residual stream behind a LayerNormalization, which INT8 rounds once more in every block",
                    fix=f"{skipping('residual_stream', options)} adds in INT8 where other nodes read it so",
                )


PLUGIN = Rule(code="QDQ195", place=place)
