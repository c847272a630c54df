"""Pairs around Concat and MaxPool share one scale, the largest.

Different scales make TensorRT quantize again inside the Concat; without a pair behind it the next Conv silently runs
in float. A MaxPool between two scales cannot pass integers through.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.graph.normalize.context import RepairContext


def repair(bench: RepairContext) -> Iterator[Change]:
    """Give the pairs before and behind each Concat and MaxPool their largest scale."""
    for members in _families(bench):
        scales = [member.scale[0] for member in members]
        if max(scales) == min(scales):
            continue
        for member in members:
            bench.restate(member, np.asarray(max(scales)))
        yield Change(
            repair="concat",
            subject=", ".join(sorted({member.tensor for member in members})),
            what=f"one scale, {max(scales):.4g}, instead of {len(set(scales))} from {min(scales):.4g} up",
            reason="different scales around Concat or MaxPool cost a second rounding, or the INT8 of what follows",
        )


def _families(bench: RepairContext) -> list[list[QdqPair]]:
    """Pairs that must share a scale: those around one node, and around nodes that have a pair in common."""
    before: dict[tuple[str, int], QdqPair] = {}
    behind: dict[str, list[QdqPair]] = {}
    for pair in bench.pairs:
        if pair.quantize and pair.dequantize and pair.kind is SlotKind.ACTIVATION and pair.scale_shape == ():
            before |= {(slot.node, slot.index): pair for slot in pair.slots}
            behind.setdefault(pair.tensor, []).append(pair)
    family: dict[str, list[QdqPair]] = {}
    for node in bench.view.nodes:
        count = len(node.inputs) if node.op == "Concat" else int(node.op == "MaxPool")
        inputs = [before[node.name, index] for index in range(count) if (node.name, index) in before]
        if not count or len(inputs) < count:
            continue
        around = [*inputs, *behind.get(node.outputs[0], [])]
        merged = [other for pair in around for other in family.get(pair.quantize or "", [pair])]
        whole = list({pair.quantize: pair for pair in merged}.values())
        family |= {pair.quantize or "": whole for pair in whole}
    return list({id(members): members for members in family.values()}.values())


PLUGIN = repair
