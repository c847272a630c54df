"""For which networks the number of kernels is foreseen exactly.

Where all products compute in INT8 and nothing but activations, sums, pools and one mean stand between them, every stretch
is one kernel. What moves values, normalizes, resizes or slices shares kernels by sizes and by the order of other nodes: of
such networks, and of those with float products in between, nine in ten numbers are off by one to three kernels at most.

Evidence: RTX 1.7.1: all networks and graphs of this project's tests and benchmarks, INT8, FP16 and float, 300 engines.
"""

from __future__ import annotations

from collections.abc import Mapping

from qdqtool.core.dtypes import DType
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import ONE_STRETCH, POOLS, QDQ

_PICTURE = 4
"""Axes of a tensor of pictures: convolutions of sounds and volumes pad, and do so in kernels of their own."""
_ALIKE = frozenset({"80", "86"})
"""Targets that gave the same kernels wherever both were built; others differ by one here and there."""


def is_certain(flow: Flow, precision: Mapping[str, DType], target: Target) -> bool:
    """Whether a network is of the kind whose number of kernels is known, if nothing in it is doubted."""
    if not target.is_rtx or not _ALIKE.issuperset(target.sm):
        return False
    if any(precision.get(node.name) is not DType.INT8 for node in flow.products()):
        return False
    if any(pair.quantize is None and pair.kind is SlotKind.ACTIVATION for pair in flow.pairs):
        return False  # the input arrives as integers
    return all(_is_sure(flow.view, node) for node in flow.view.nodes)


def _is_sure(view: GraphView, node: Node) -> bool:
    if node.op == "Cast":
        return not view.uses(node.outputs[0]) or (
            view.producer(node.inputs[0]) is None and not view.is_constant(node.inputs[0])
        )
    if node.op == "Conv":
        return len(view.info(node.inputs[0]).shape or ()) == _PICTURE
    if node.op in POOLS | {"Concat"} and any(_is_pooled(view, tensor) for tensor in node.inputs):
        return False  # a pool of a pool may be one for each scale, as in GoogLeNet
    if node.op == "Concat":
        return True
    return node.op in QDQ | ONE_STRETCH


def _is_pooled(view: GraphView, tensor: str) -> bool:
    """Whether a pool makes a tensor, or what is rounded to it."""
    maker = view.producer(tensor)
    while maker is not None and maker.op in QDQ:
        maker = view.producer(maker.inputs[0])
    return maker is not None and maker.op in POOLS
