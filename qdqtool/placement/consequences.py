"""Consequences of the opinions: slots that stay float because others do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from qdqtool.core.advice import joined, setting
from qdqtool.core.claims import Says, of_reason
from qdqtool.core.placement import Bond, Opinion, Slot, Stance, Tie
from qdqtool.graph.view import GraphView
from qdqtool.matching.products import compute_nodes, factors
from qdqtool.placement.ties import carriers
from qdqtool.trt.ops import upstream

KV_CACHE = "kv_cache"
"""The rule that requests quantized storage independently of the arithmetic."""
Opinions = Mapping[Slot, list[Opinion]]


def granted(opinions: Iterable[Opinion]) -> bool:
    """Return whether there is a request and no veto."""
    return {opinion.stance for opinion in opinions} == {Stance.REQUEST}


def broken(bonds: list[Bond], opinions: Opinions) -> Iterator[Opinion]:
    """Yield vetoes for slots whose partners in a bond stay float, directly or through partners of their own."""
    named = {slot for bond in bonds for slot in (*bond.slots, *bond.requires)}
    first = {slot for slot in named if not granted(opinions.get(slot, ()))}
    refused = _spread(first, bonds)
    for bond in bonds:
        for slot in bond.slots:
            if slot in refused - first:
                partners = {*bond.slots, *bond.requires} - {slot}
                causes = sorted(partners & first) or sorted(partners & refused)
                if causes:
                    yield Opinion(
                        slot=slot,
                        rule=bond.rule,
                        stance=Stance.VETO,
                        reason=f"{bond.reason}, and {', '.join(map(str, causes))} stays float",
                        fix=_freeing(causes, opinions),
                    )


def _freeing(causes: list[Slot], opinions: Opinions) -> str:
    """Return the fixes that would quantize the slots that keep others float."""
    fixes = [said.fix for slot in causes for said in opinions.get(slot, ()) if said.stance is Stance.VETO]
    return joined(filter(None, fixes)) or f"nothing to do: no rule asks for {causes[0]}"


def _spread(refused: set[Slot], bonds: list[Bond]) -> set[Slot]:
    """Return all slots that a veto reaches through bonds."""
    reached, fresh = set(refused), refused
    while fresh:
        fresh = {
            slot
            for bond in bonds
            if not reached.isdisjoint((*bond.slots, *bond.requires))
            for slot in bond.slots
        } - reached
        reached |= fresh
    return reached


def weights_alone(view: GraphView, opinions: Opinions) -> Iterator[Opinion]:
    """Yield vetoes for all slots except constant factors of compute nodes, for recipes that keep activations float.

    KV caches are excepted.
    """
    weights = {
        slot
        for node in compute_nodes(view)
        for slot in factors(node)
        if view.is_constant(node.inputs[slot.index])
    }
    cached = {slot for slot, said in opinions.items() if any(entry.rule == KV_CACHE for entry in said)}
    for slot in opinions.keys() - weights - cached:
        yield Opinion(
            slot=slot,
            rule="user",
            stance=Stance.VETO,
            reason="place.activations is float, so only weights are quantized and the arithmetic is float as requested",
            fix=f"{setting('place.activations', 'int8')} for INT8 arithmetic",
        )


def unshared(view: GraphView, ties: list[Tie], opinions: Opinions) -> Iterator[Opinion]:
    """Yield vetoes for slots that are worth quantizing only if another consumer reads the tensor quantized, and none does."""
    tensors = {
        slot: view.by_name[slot.node].inputs[slot.index] for slot, said in opinions.items() if granted(said)
    }
    hopeful = {slot for slot in tensors if all(opinion.only_if_shared for opinion in opinions[slot])}
    shared = carriers(ties, {tensor for slot, tensor in tensors.items() if slot not in hopeful})
    for slot in hopeful:
        if shared.isdisjoint(upstream(view, tensors[slot])):
            yield Opinion(
                slot=slot,
                rule=min(opinion.rule for opinion in opinions[slot]),
                stance=Stance.VETO,
                reason="no other layer reads these values quantized, so INT8 saves nothing",
                fix="nothing to do: INT8 here alone would save nothing",
                claim=of_reason(Says.QUANTIZES_MORE),
            )
