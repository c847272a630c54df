"""The number of nodes that a placement quantizes, as text: compute nodes of all compute nodes, and other nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtool.core.wording import counted
from qdqtool.trt.ops import COMPUTE

if TYPE_CHECKING:
    from qdqtool.core.placement import Placement
    from qdqtool.graph.view import GraphView


def nodes_of(view: GraphView, placement: Placement) -> str:
    """Return `63 of 64 compute nodes and 14 others` for the prepared model that was placed.

    The others add, join or pool what the compute nodes give; a run counts compute nodes alone, because an engine has
    kernels for these.
    """
    chosen = {entry.slot.node for entry in placement.quantized}
    compute = {node.name for node in view.nodes if node.op in COMPUTE}
    told = f"{len(chosen & compute)} of {counted(len(compute), 'compute node')}"
    others = len(chosen - compute)
    return f"{told} and {counted(others, 'other')}" if others else told
