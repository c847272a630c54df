"""Lines about the nodes that a placement quantizes and the node inputs that an edit changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from qdqtool.core.wording import count_noun
from qdqtool.trt.ops import COMPUTE

if TYPE_CHECKING:
    from qdqtool.core.fixes import SlotChange
    from qdqtool.core.placement import Placement
    from qdqtool.graph.view import GraphView


def nodes_of(view: GraphView, placement: Placement) -> str:
    """Return words such as `63 of 64 compute nodes and 14 others` on what a placement quantizes.

    All other nodes add, join or pool the results of compute nodes. A run counts only compute nodes, because an engine
    has kernels for these.
    """
    chosen = {entry.slot.node for entry in placement.quantized}
    compute = {node.name for node in view.nodes if node.op in COMPUTE}
    words = f"{len(chosen & compute)} of {count_noun(len(compute), 'compute node')}"
    moved = len(chosen - compute)
    return f"{words} and {count_noun(moved, 'other')}" if moved else words


# --- slots -----------------------------------------------------------------------------------------------------------
# Lines about the node inputs that an edit of a Q/DQ model changed.


_SHOWN = 3
"""Number of inputs that are listed."""


def slot_lines(changes: Sequence[SlotChange]) -> Iterator[str]:
    """Yield the number of inputs whose quantization changed, and the names of the first ones."""
    if not changes:
        return
    yield f"{count_noun(len(changes), 'input is', 'inputs are')} quantized in another way than before:"
    for change in changes[:_SHOWN]:
        yield f"    {change.slot}: {change.before} -> {change.after}"
    if len(changes) > _SHOWN:
        yield f"    and {len(changes) - _SHOWN} more; --json lists them all"
