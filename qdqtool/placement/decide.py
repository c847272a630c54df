"""Combines the statements of all rules: an input is quantized if a rule requests it and no rule vetoes it.

The order of rules cannot matter: requests and vetoes are sets, and groups of tensors or inputs are merged as equivalence relations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from qdqtool.core.advice import format_fix, join_fixes, setting
from qdqtool.core.claims import Assertion, of_reason
from qdqtool.core.placement import (
    Decision,
    JointSlots,
    Placement,
    QuantSpec,
    RequestOrVeto,
    SharedScale,
    Slot,
    SlotKind,
    SlotStatement,
    classes,
)
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.tensors import Scheme
from qdqtool.core.wording import count_noun
from qdqtool.errors import UsageError
from qdqtool.graph.view import GraphView
from qdqtool.matching.products import compute_nodes, operand_slots
from qdqtool.matching.rule import RULES, Place, Rulebook, rulebook
from qdqtool.placement.formats import notes, refuse, replace_opinions, schemes
from qdqtool.trt.ops import SHAPE_READERS, upstream

# --- shared scales ---------------------------------------------------------------------------------------------------
# The groups with a shared scale among the quantized tensors, merged.


_MOST_REASONS = 4
"""Most reasons listed for one merged group of tensors with a shared scale."""


def carriers(ties: Iterable[SharedScale], quantized: Iterable[str]) -> frozenset[str]:
    """Return the quantized tensors, and all tensors to which their Q can move upstream.

    A Q moves from the first tensor of a group with a shared scale to the other tensors of the group.
    """
    behind = _by_first(ties)
    reached = set(quantized)
    frontier = sorted(reached)
    while frontier:
        for tie in behind.get(frontier.pop(), ()):
            fresh = set(tie.tensors) - reached
            reached |= fresh
            frontier.extend(fresh)
    return frozenset(reached)


def effective(ties: Iterable[SharedScale], quantized: frozenset[str]) -> tuple[SharedScale, ...]:
    """Return the groups of quantized tensors that need one scale, because a Q moves upstream through them.

    Groups with a common tensor are merged.
    """
    behind = _by_first(ties)
    active = [tie for first in sorted(carriers(ties, quantized) & behind.keys()) for tie in behind[first]]
    groups = [group for group in classes(tie.tensors for tie in active) if len(group & quantized) > 1]
    home = {tensor: number for number, group in enumerate(groups) for tensor in group}
    parts: dict[int, list[SharedScale]] = defaultdict(list)
    for tie in active:
        if tie.tensors[0] in home:
            parts[home[tie.tensors[0]]].append(tie)
    merged = (_merge_ties(groups[number] & quantized, members) for number, members in parts.items())
    return tuple(sorted(merged, key=lambda tie: tie.tensors))


def _by_first(ties: Iterable[SharedScale]) -> dict[str, list[SharedScale]]:
    behind: dict[str, list[SharedScale]] = defaultdict(list)
    for tie in ties:
        behind[tie.tensors[0]].append(tie)
    return behind


def _merge_ties(tensors: frozenset[str], ties: list[SharedScale]) -> SharedScale:
    reasons = sorted({tie.reason for tie in ties})
    more = f"; and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    return SharedScale(
        tensors=tuple(sorted(tensors)),
        rule=", ".join(sorted({tie.rule for tie in ties})),
        reason="; ".join(reasons[:_MOST_REASONS]) + more,
        apart=tuple(sorted({name for tie in ties for name in tie.apart}.intersection(tensors))),
    )


# --- consequences ----------------------------------------------------------------------------------------------------
# Consequences of the statements: slots that stay float because others do.


KV_CACHE = "kv_cache"
"""The rule that requests quantized storage independently of the arithmetic."""
Opinions = Mapping[Slot, list[SlotStatement]]


def is_granted(opinions: Iterable[SlotStatement]) -> bool:
    """Return True if the statements about an input contain a request and no veto."""
    return {opinion.stance for opinion in opinions} == {RequestOrVeto.REQUEST}


def broken(bonds: list[JointSlots], opinions: Opinions) -> Iterator[SlotStatement]:
    """Yield vetoes for inputs that are only quantized together with an input that stays float."""
    named = {slot for bond in bonds for slot in (*bond.slots, *bond.requires)}
    first = {slot for slot in named if not is_granted(opinions.get(slot, ()))}
    refused = _spread(first, bonds)
    for bond in bonds:
        for slot in bond.slots:
            if slot in refused - first:
                partners = {*bond.slots, *bond.requires} - {slot}
                causes = sorted(partners & first) or sorted(partners & refused)
                if causes:
                    yield SlotStatement(
                        slot=slot,
                        rule=bond.rule,
                        stance=RequestOrVeto.VETO,
                        reason=f"{bond.reason}, and {', '.join(map(str, causes))} stays float",
                        fix=_freeing(causes, opinions),
                    )


def _freeing(causes: list[Slot], opinions: Opinions) -> str:
    """Return the fixes for all vetoes on the inputs `causes`, because of which other inputs stay float."""
    fixes = [
        opinion.fix
        for slot in causes
        for opinion in opinions.get(slot, ())
        if opinion.stance is RequestOrVeto.VETO
    ]
    return join_fixes(filter(None, fixes)) or f"nothing to do: no rule asks for {causes[0]}"


def _spread(refused: set[Slot], bonds: list[JointSlots]) -> set[Slot]:
    """Return `refused`, and all inputs that stay float because `bonds` ties them to a refused input."""
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


def weights_alone(view: GraphView, opinions: Opinions) -> Iterator[SlotStatement]:
    """Yield vetoes for all inputs except constant operands of compute nodes, for recipes that keep activations float.

    Inputs of KV caches get no veto.
    """
    weights = {
        slot
        for node in compute_nodes(view)
        for slot in operand_slots(node)
        if view.is_constant(node.inputs[slot.index])
    }
    cached = {slot for slot, stated in opinions.items() if any(entry.rule == KV_CACHE for entry in stated)}
    for slot in opinions.keys() - weights - cached:
        yield SlotStatement(
            slot=slot,
            rule="user",
            stance=RequestOrVeto.VETO,
            reason="place.activations is float, so only weights are quantized and the arithmetic is float as requested",
            fix=f"{setting('place.activations', 'int8')} for INT8 arithmetic",
        )


def veto_unshared(view: GraphView, ties: list[SharedScale], opinions: Opinions) -> Iterator[SlotStatement]:
    """Yield vetoes for inputs that gain from Q/DQ only if another reader of the tensor is quantized, but none is."""
    tensors = {
        slot: view.by_name[slot.node].inputs[slot.index]
        for slot, stated in opinions.items()
        if is_granted(stated)
    }
    hopeful = {slot for slot in tensors if all(opinion.only_if_shared for opinion in opinions[slot])}
    shared = carriers(ties, {tensor for slot, tensor in tensors.items() if slot not in hopeful})
    for slot in hopeful:
        if shared.isdisjoint(upstream(view, tensors[slot])):
            yield SlotStatement(
                slot=slot,
                rule=min(opinion.rule for opinion in opinions[slot]),
                stance=RequestOrVeto.VETO,
                reason="no other layer reads these values in INT8, so INT8 saves nothing",
                fix="nothing to do: INT8 here alone would save nothing",
                claim=of_reason(Assertion.QUANTIZES_MORE),
            )


# --- decide ----------------------------------------------------------------------------------------------------------


def decide(
    view: GraphView, options: PlacementOptions | None = None, rules: Mapping[str, Place] | None = None
) -> Placement:
    """Decide where Q/DQ goes in a model, with every reason for and against.

    Every input of every weighted node gets a decision, and so does every other input that a rule names.

    Args:
        view: the prepared model.
        options: options of the recipe; without them, their defaults.
        rules: what to ask, by name, in any order; all rules without.

    Raises:
        UsageError: `skip_rules` names an unknown rule, two rules want one slot quantized differently, or `every_tensor`
            meets a format other than INT8.
    """
    options = options or PlacementOptions()
    _refuse_other_formats(options)
    opinions: dict[Slot, list[SlotStatement]] = defaultdict(list)
    ties: list[SharedScale] = []
    bonds: list[JointSlots] = []
    book = rulebook()
    for statement in _statements(book, view, options, rules):
        match statement:
            case SlotStatement():
                opinions[statement.slot].append(statement)
            case SharedScale():
                ties.append(statement)
            case JointSlots():
                bonds.append(statement)
    requests = schemes(view, options)
    refuse(view, options, requests)
    replace_opinions(view, options, requests, opinions, bonds)
    if options.activations == "float":
        # A compute node with one quantized input computes in float, as requested here.
        _add(opinions, weights_alone(view, opinions))
    else:
        _add(opinions, broken(bonds, opinions))
    _add(opinions, veto_unshared(view, ties, opinions))
    for node in compute_nodes(view):
        for slot in operand_slots(node):
            opinions.setdefault(slot, [])
    if options.every_tensor:
        _quantize_every_tensor(view, opinions)
    decisions = tuple(_decision(view, slot, opinions[slot]) for slot in _in_graph_order(view, opinions))
    return Placement(
        decisions=decisions,
        ties=effective(ties, frozenset(decision.tensor for decision in decisions if decision.quantize)),
        notes=(
            *_uncalibrated_notes(decisions),
            *_note_unmatched(view, options),
            *_note_weights_alone(options, requests, decisions),
            *notes(view, options, requests),
            *book.notes,
        ),
    )


def _refuse_other_formats(options: PlacementOptions) -> None:
    if options.every_tensor and (
        options.format != "int8" or options.formats or options.activations != "int8"
    ):
        raise UsageError(
            "place.every_tensor is for DLA, whose only low-bit format is INT8",
            fix=f"remove place.format, place.formats and place.activations, or {setting('place.every_tensor', 'false')}",
            where="place.every_tensor",
        )


def _quantize_every_tensor(view: GraphView, opinions: dict[Slot, list[SlotStatement]]) -> None:
    """Request Q/DQ on all computed float inputs, and remove all vetoes except those of the user."""
    for node in view.nodes:
        if node.op in SHAPE_READERS:
            continue
        for index, tensor in enumerate(node.inputs):
            slot = Slot(node=node.name, index=index)
            stated = opinions.get(slot, [])
            if not tensor or is_granted(stated) or any(entry.rule == "user" for entry in stated):
                continue
            if view.is_constant(tensor):
                requests = [entry for entry in stated if entry.stance is RequestOrVeto.REQUEST]
                opinions.setdefault(slot, [])[:] = requests
            elif view.info(tensor).dtype.is_float:
                opinions[slot] = [
                    SlotStatement(
                        slot=slot,
                        rule="user",
                        stance=RequestOrVeto.REQUEST,
                        reason="place.every_tensor requests a scale for every tensor",
                    )
                ]


def _statements(
    book: Rulebook, view: GraphView, options: PlacementOptions, rules: Mapping[str, Place] | None
) -> Iterator[SlotStatement | SharedScale | JointSlots]:
    """Yield the statements of all rules, each with the name of its rule."""
    for name in options.skip_rules:
        RULES.load(name)
    own = {name: rule.place for name, rule in book.rules.items() if rule.place is not None}
    for name, place in (own if rules is None else rules).items():
        if name not in options.skip_rules:
            for statement in book.results_of(name, partial(place, view, options)):
                yield replace(statement, rule=name)


def _add(opinions: dict[Slot, list[SlotStatement]], more: Iterator[SlotStatement]) -> None:
    for opinion in tuple(more):
        opinions[opinion.slot].append(opinion)


def _in_graph_order(view: GraphView, slots: Iterable[Slot]) -> list[Slot]:
    # A damaged node may lack an input that its operator has; there is nothing to decide about then.
    there = (slot for slot in slots if slot.index < len(view.by_name[slot.node].inputs))
    return sorted(there, key=lambda slot: (view.by_name[slot.node].position, slot.index))


def _decision(view: GraphView, slot: Slot, opinions: list[SlotStatement]) -> Decision:
    node = view.by_name[slot.node]
    tensor = node.inputs[slot.index]
    quantize = is_granted(opinions)
    return Decision(
        slot=slot,
        tensor=tensor,
        op=node.op,
        kind=SlotKind.WEIGHT if view.is_constant(tensor) else SlotKind.ACTIVATION,
        quantize=quantize,
        spec=_spec(slot, opinions) if quantize else None,
        opinions=tuple(sorted(map(_add_followed_fix, opinions), key=_rank)),
    )


def _add_followed_fix(opinion: SlotStatement) -> SlotStatement:
    fix = format_fix(opinion.fix)
    return opinion if fix == opinion.fix else replace(opinion, fix=fix)


def _rank(opinion: SlotStatement) -> tuple[bool, str, str]:
    return (opinion.stance is RequestOrVeto.VETO, opinion.rule, opinion.reason)


def _spec(slot: Slot, opinions: list[SlotStatement]) -> QuantSpec:
    specs = {opinion.spec for opinion in opinions if opinion.spec is not None}
    if len(specs) > 1:
        rules = " and ".join(sorted({opinion.rule for opinion in opinions}))
        raise UsageError(
            f"the rules {rules} disagree on how to quantize this input",
            fix="switch off one of the rules with place.skip_rules",
            where=str(slot),
        )
    return specs.pop() if specs else QuantSpec()


def _uncalibrated_notes(decisions: Iterable[Decision]) -> Iterator[str]:
    """Yield a note if samples cannot run a part of the network because of custom operators."""
    nodes = {
        decision.slot.node
        for decision in decisions
        if any(opinion.rule == "unseen" for opinion in decision.opinions)
    }
    if nodes:
        yield (
            f"float, because no sample reaches them: {count_noun(len(nodes), 'node')} after plug-in operators that onnxruntime lacks, first {min(nodes)!r}; pass a library that has them with --custom-ops"
        )


def _note_weights_alone(
    options: PlacementOptions, requests: Mapping[str, Scheme], decisions: Iterable[Decision]
) -> Iterator[str]:
    """Yield a note with the number of nodes that have low-bit weights but float arithmetic, as the recipe requests."""
    every = options.activations == "float"
    nodes = {name for name, scheme in requests.items() if scheme.weight_only}
    if every or nodes:
        stored = {
            decision.slot.node
            for decision in decisions
            if decision.quantize
            and decision.kind is SlotKind.WEIGHT
            and (every or decision.slot.node in nodes)
        }
        source = f"place.{'activations' if every else 'format'} requests"
        yield (
            f"{count_noun(len(stored), 'node has', 'nodes have')} low-bit weights and float arithmetic, as {source}"
            if stored
            else f"no weights are quantized: {source} low-bit weights and float arithmetic, which no node of this model gets"
        )


def _note_unmatched(view: GraphView, options: PlacementOptions) -> Iterator[str]:
    listed = (("exclude", options.exclude), ("only", options.only), ("formats", tuple(options.formats)))
    for option, patterns in listed:
        for pattern in patterns:
            if not any(fnmatchcase(node.name, pattern) for node in view.nodes):
                yield f"no node matches the pattern {pattern!r} of place.{option}"
    for name in options.kept_float:
        if name not in view.by_name:
            yield f"place.kept_float lists {name!r}, but the model has no such node"
