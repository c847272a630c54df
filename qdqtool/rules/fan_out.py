"""A tensor that several moving operators read gets its Q/DQ in front of them, not only behind.

    before                                     after
    x ─┬─ Resize ─ Concat ─ QDQ(s) ─ Conv      x ─┬─ QDQ(s) ─ Resize ─ Concat ─ QDQ(s) ─ Conv
       └─ Concat ─ QDQ(s) ─ Conv                  └─ QDQ(s) ─ Concat ─ QDQ(s) ─ Conv

The Q behind each way would move back to x on its own, but not always in time: the producer then writes a float copy
for the later way, and a chain of pools is computed once per way. A Concat on such a way gets pairs on all branches,
or the last pool of a chain stays float. All these pairs share one scale (see the rules `concat` and `commuting`), so
the second rounding changes nothing. Where a product reads x directly, its own Q is there already.

Evidence: RTX 1.7.1, a YOLOv8n-like detector: 132 kernels and 44.75 MB without, 129 kernels and 44.24 MB with; without,
the SPPF pools are computed six times instead of three. INT8 pools would cost a copy kernel per branch of their Concat
(YOLOX-Nano: 218 kernels and 56.5 MB, against 215 and 57.2 MB with float pools), but for the rule `pool_concat`.
NVIDIA's YOLO scripts quantize pools and Concats likewise.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Opinion, QuantSpec, Slot, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.demand import wanted_slots
from qdqtool.matching.rule import Rule
from qdqtool.trt.ops import ASKED_FOR, PRODUCTS, picks_part, quantization_commutes


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """The slots of moving operators that read a tensor two or more of them read, and their Concats' other slots."""
    for slot, tensor in sorted(_slots(view, options).items()):
        yield Opinion(
            slot=slot,
            stance=Stance.REQUEST,
            reason=f"several ways to INT8 layers begin at {tensor}: one Q in front serves all",
            spec=QuantSpec(),
            only_if_shared=True,
        )


def _slots(view: GraphView, options: PlacementOptions) -> dict[Slot, str]:
    """Slot -> the tensor at which the ways fork."""
    wanted = wanted_slots(view)
    found: dict[Slot, str] = {}
    for tensor in (tensor for node in view.nodes for tensor in node.outputs):
        uses = [use for use in view.uses(tensor) if Slot(node=use.node.name, index=use.index) in wanted]
        if len(uses) < 2 or any(use.node.op in PRODUCTS for use in uses):
            continue
        for use in uses:
            if _moves(view, use.node, options):
                count = len(use.node.inputs) if use.node.op == "Concat" else 0
                for index in (use.index, *range(count)):
                    if not view.is_constant(use.node.inputs[index]):
                        found.setdefault(Slot(node=use.node.name, index=index), tensor)
    return found


def _moves(view: GraphView, node: Node, options: PlacementOptions) -> bool:
    if node.op in ASKED_FOR:
        return node.op in options.ops
    return quantization_commutes(view, node) and not picks_part(node)


PLUGIN = Rule(code="QDQ166", place=place)
