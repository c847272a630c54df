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
from qdqtool.graph.normalize.bench import Bench
from qdqtool.graph.view import Node


def repair(bench: Bench) -> Iterator[Change]:
    """Give the pairs before and behind each Concat and MaxPool their largest scale."""
    before = {pair.slots[0]: pair for pair in bench.pairs if len(pair.slots) == 1 and pair.quantize}
    by_slot = {(slot.node, slot.index): pair for slot, pair in before.items()}
    family: dict[int, list[QdqPair]] = {}
    for node in bench.view.nodes:
        if node.op not in {"Concat", "MaxPool"}:
            continue
        members = _around(bench, node, by_slot)
        if members is None:
            continue
        merged = list(members)
        for member in members:
            merged += family.get(id(member), [])
        unique = list({id(member): member for member in merged}.values())
        for member in unique:
            family[id(member)] = unique
    seen: set[int] = set()
    for members in family.values():
        if id(members) in seen:
            continue
        seen.add(id(members))
        scales = [member.scale[0] for member in members]
        if max(scales) > min(scales):
            for member in members:
                bench.restate(member, np.asarray(max(scales)))
            names = ", ".join(sorted({member.tensor for member in members}))
            yield Change(
                repair="concat",
                subject=names,
                what=f"one scale, {max(scales):.4g}, instead of {len(set(scales))} from {min(scales):.4g} up",
                reason="different scales around Concat or MaxPool cost a second rounding, or the INT8 of what follows",
            )


def _around(bench: Bench, node: Node, by_slot: dict[tuple[str, int], QdqPair]) -> list[QdqPair] | None:
    """The pairs on every input of `node` and on its output; None where an input has none."""
    count = len(node.inputs) if node.op == "Concat" else 1
    inputs = [by_slot.get((node.name, index)) for index in range(count)]
    outputs = [pair for pair in bench.pairs if pair.tensor == node.outputs[0] and pair.quantize]
    found = [pair for pair in inputs if pair is not None] + outputs
    plain = all(
        pair.scale_shape == () and pair.dequantize and pair.kind is SlotKind.ACTIVATION for pair in found
    )
    return found if plain and None not in inputs else None


PLUGIN = repair
