"""Normalizations of several groups, which are kernels of their own in TensorRT for RTX.

    InstanceNormalization or GroupNormalization              one kernel
    Reshape ─ InstanceNormalization ─ Reshape ─ Mul ─ Add    one, of which the next one says that it holds it too

With one group the sums are made along rows, in one kernel with what is around them.

Evidence: RTX 1.7.1, 1 to 32 groups of 8x8 to 56x56 values between two convolutions (`__myl_Inor` is the kernel's name).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import BEHIND_GROUPS


def normalizations(view: GraphView) -> Iterator[tuple[Node, ...]]:
    """The nodes of every normalization of several groups; what gives groups their own factors is part of it."""
    for node in view.nodes:
        if node.op == "GroupNormalization" and node.attribute("num_groups", 1) != 1:
            yield (node,)
        if node.op == "InstanceNormalization" and (view.info(node.inputs[0]).shape or (0, 1))[1] != 1:
            yield _grouped(view, node) or (node,)


def _grouped(view: GraphView, node: Node) -> tuple[Node, ...]:
    """The five nodes of a GroupNormalization as exporters write it; () where `node` stands alone."""
    before = view.producer(node.inputs[0])
    if before is None or before.op != "Reshape":
        return ()
    found = [before, node]
    for op in BEHIND_GROUPS:
        uses = view.uses(found[-1].outputs[0])
        if len(uses) != 1 or uses[0].node.op != op:
            return ()
        found.append(uses[0].node)
    return tuple(found)
