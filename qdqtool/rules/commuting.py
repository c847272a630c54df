"""Operators that only move or pick values keep the scale of what they move.

    before                            after
    x ─┬─ Conv                        x ─┬─ QDQ(s) ─ Conv
       └─ MaxPool ─ Reshape ─ Conv       └─ MaxPool ─ Reshape ─ QDQ(s) ─ Conv

MaxPool, Slice, Split, Reshape, Transpose, Flatten, Squeeze, Unsqueeze, nearest Resize, zero Pad and the like. The
builder moves the Q in front of them, so they run on INT8 values without Q/DQ of their own; with one scale before and
behind, the tensor in front is quantized once. Parts that are picked out of a tensor (Slice, Split, Gather) take its
scale only where the whole tensor is quantized too: query, key and value cut out of one product keep their own.

Evidence: RTX 1.7.1 runs MaxPool, Split, Slice, Pad, Transpose and nearest Resize on Int8 with Q/DQ only behind them
(maxpool_noq, split_q, resize_q; a strided Slice and Pad shortcut 1.07 MB against 1.11 MB). Classic logs: passes
SwapWithFollowingQ and VanillaSwapWithFollowingQ.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Tie
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.matching.rule import Rule
from qdqtool.trt.ops import carried_inputs, carried_outputs, picks_part


def place(view: GraphView, options: PlacementOptions) -> Iterator[Tie]:
    """One tie per moved output: the result first, then the input; for picked parts the input first."""
    for node in view.nodes:
        if carried_inputs(view, node) != (0,) or node.op == "Concat" or view.is_constant(node.inputs[0]):
            continue
        if node.op == "MaxPool" and "MaxPool" not in options.ops:
            continue
        for output in carried_outputs(node):
            yield Tie(
                tensors=(node.inputs[0], output) if picks_part(node) else (output, node.inputs[0]),
                reason=f"{node.op} {node.name} moves values without changing them",
            )


PLUGIN = Rule(code="QDQ161", place=place)
