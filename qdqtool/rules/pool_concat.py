"""A Concat of pools is one kernel when the scale behind it is the next number above the one in front.

    before                                 after
    x ─┬───────────────── Concat ─ Conv    x ─┬─────────────── QDQ(s) ─ Concat ─ QDQ(s+) ─ Conv
       ├─ MaxPool ──────────┤                 ├─ MaxPool ───── QDQ(s) ───┤
       └─ MaxPool ─ MaxPool ┘                 └─ ... ───────── QDQ(s) ───┘

With equal scales the builder drops the pair behind, and then copies every branch into its place in the result: a pool
is a kernel of its own that cannot write there. With s+, the next number after s, the pair stays, and one kernel reads
all branches and writes the result. No value changes: q * s / s+ rounds to q for every INT8 q.

It is for Concats whose branches are all there in INT8 anyway, pools and tensors that these pools read: the result of
another layer would be written once more, instead of straight into its place. Only layers may read the Concat, because
s+ must not meet s elsewhere. TensorRT for RTX only.

Evidence: RTX 1.7.1: a chain of three pools takes 11 kernels and 237568 bytes instead of 15 and 253952; YOLOX-Nano 215
kernels and no converting one instead of 218 and four, at the same 114.24 MB; a YOLOv8n-like detector 126 instead of
129. The same with FP16 scales. For a Concat of a pool and the layer beside it, it would be 8 kernels instead of 9, but
0.111 MB with fused epilogues instead of 0.078.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Opinion, QuantSpec, Slot, Stance, Tie
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule
from qdqtool.trt.ops import ASKED_FOR, PRODUCTS


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion | Tie]:
    """Pairs on all branches, and a scale apart for the result."""
    if not options.builder.is_rtx or not set(options.ops) >= ASKED_FOR:
        return
    for node in view.nodes:
        if node.op != "Concat" or not _is_of_pools(view, node) or not _feeds_layers(view, node):
            continue
        for index in range(len(node.inputs)):
            yield Opinion(
                slot=Slot(node=node.name, index=index),
                stance=Stance.REQUEST,
                reason="a Concat of pools is one kernel with pairs on both sides",
                spec=QuantSpec(),
                only_if_shared=True,
            )
        yield Tie(
            tensors=(node.outputs[0], *node.inputs),
            reason=f"{node.name} joins pools: one step between the scales spares a copy of each",
            apart=node.outputs,
        )


def _is_of_pools(view: GraphView, concat: Node) -> bool:
    """Whether two branches or more are pools, and all others are what these pools read."""
    makers = {tensor: view.producer(tensor) for tensor in concat.inputs}
    pools = [maker for maker in makers.values() if maker is not None and maker.op == "MaxPool"]
    read = {pool.inputs[0] for pool in pools}
    return len(pools) > 1 and all(maker in pools or tensor in read for tensor, maker in makers.items())


def _feeds_layers(view: GraphView, concat: Node) -> bool:
    uses = view.uses(concat.outputs[0])
    if not uses or view.is_output(concat.outputs[0]):
        return False
    return all(use.node.op in PRODUCTS and use.index == 0 for use in uses)


PLUGIN = Rule(code="QDQ175", place=place)
