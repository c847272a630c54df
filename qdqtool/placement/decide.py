"""Counts the opinions of all rules: a slot is quantized if someone requests it and nobody vetoes.

The order of rules cannot matter: requests and vetoes are sets, ties and bonds are merged as equivalence relations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from qdqtool.core.placement import (
    Bond,
    Decision,
    Opinion,
    Placement,
    QuantSpec,
    Slot,
    SlotKind,
    Stance,
    Tie,
)
from qdqtool.core.recipe import PlacementOptions
from qdqtool.errors import UsageError
from qdqtool.graph.view import GraphView
from qdqtool.placement.commuting import upstream
from qdqtool.placement.ties import carriers, effective
from qdqtool.placement.weighted import compute_nodes, factors
from qdqtool.plugins import Shelf

RULES = Shelf(package="qdqtool.placement.rules")

Rule = Callable[[GraphView, PlacementOptions], Iterator[Opinion | Tie | Bond]]


def decide(
    view: GraphView, options: PlacementOptions | None = None, rules: Iterable[Rule] | None = None
) -> Placement:
    """Where Q/DQ goes in a model, with every reason for and against.

    Every input of every weighted node gets a decision, and so does every other slot that a rule speaks of.

    Args:
        view: the prepared model.
        options: what the recipe says; its defaults without.
        rules: which rules to ask, in any order; those of the shelf without.

    Raises:
        UsageError: `skip_rules` names an unknown rule, or two rules want one slot quantized differently.
    """
    options = options or PlacementOptions()
    opinions: dict[Slot, list[Opinion]] = defaultdict(list)
    ties: list[Tie] = []
    bonds: list[Bond] = []
    for rule in _asked(options) if rules is None else rules:
        for statement in rule(view, options):
            match statement:
                case Opinion():
                    opinions[statement.slot].append(statement)
                case Tie():
                    ties.append(statement)
                case Bond():
                    bonds.append(statement)
    _add(opinions, _broken(bonds, opinions))
    _add(opinions, _unshared(view, ties, opinions))
    for node in compute_nodes(view):
        for slot in factors(node):
            opinions.setdefault(slot, [])
    decisions = tuple(_decision(view, slot, opinions[slot]) for slot in _in_graph_order(view, opinions))
    return Placement(
        decisions=decisions,
        ties=effective(ties, frozenset(decision.tensor for decision in decisions if decision.quantize)),
        notes=tuple(_unmatched(view, options)),
    )


def _asked(options: PlacementOptions) -> tuple[Rule, ...]:
    for name in options.skip_rules:
        RULES.load(name)
    return tuple(RULES.load(name) for name in RULES.names() if name not in options.skip_rules)


def _granted(opinions: Iterable[Opinion]) -> bool:
    stances = {opinion.stance for opinion in opinions}
    return stances == {Stance.REQUEST}


def _broken(bonds: list[Bond], opinions: Mapping[Slot, list[Opinion]]) -> Iterator[Opinion]:
    """Vetoes for slots whose partners stay float."""
    named = {slot for bond in bonds for slot in (*bond.slots, *bond.requires)}
    first = {slot for slot in named if not _granted(opinions.get(slot, ()))}
    refused, fresh = set(first), first
    while fresh:
        fresh = {
            slot
            for bond in bonds
            if not refused.isdisjoint((*bond.slots, *bond.requires))
            for slot in bond.slots
        } - refused
        refused |= fresh
    for bond in bonds:
        partners = {*bond.slots, *bond.requires}
        causes = sorted(partners & first) or sorted(partners & refused - set(bond.slots))
        for slot in bond.slots:
            if slot in refused - first:
                others = causes or sorted(partners & refused - {slot})
                yield Opinion(
                    slot=slot,
                    rule=bond.rule,
                    stance=Stance.VETO,
                    reason=f"{bond.reason}, and {', '.join(map(str, others))} stays float",
                    fix=f"quantize {others[0]} too",
                )


def _unshared(view: GraphView, ties: list[Tie], opinions: Mapping[Slot, list[Opinion]]) -> Iterator[Opinion]:
    """Vetoes for slots that were only worth quantizing if another consumer had the same values quantized."""
    asking = {
        slot: [o for o in said if o.only_if_shared] for slot, said in opinions.items() if _granted(said)
    }
    firm = {view.by_name[slot.node].inputs[slot.index] for slot, hopes in asking.items() if not hopes}
    shared = carriers(ties, firm)
    for slot, hopes in asking.items():
        tensor = view.by_name[slot.node].inputs[slot.index]
        if hopes and shared.isdisjoint(upstream(view, tensor)):
            yield Opinion(
                slot=slot,
                rule=min(hope.rule for hope in hopes),
                stance=Stance.VETO,
                reason="no other layer reads these values in INT8, so nothing would be saved",
                fix="quantize another consumer of the tensor",
            )


def _add(opinions: dict[Slot, list[Opinion]], more: Iterator[Opinion]) -> None:
    for opinion in tuple(more):
        opinions[opinion.slot].append(opinion)


def _in_graph_order(view: GraphView, slots: Iterable[Slot]) -> list[Slot]:
    return sorted(slots, key=lambda slot: (view.by_name[slot.node].position, slot.index))


def _decision(view: GraphView, slot: Slot, opinions: list[Opinion]) -> Decision:
    node = view.by_name[slot.node]
    tensor = node.inputs[slot.index]
    quantize = _granted(opinions)
    return Decision(
        slot=slot,
        tensor=tensor,
        op=node.op,
        kind=SlotKind.WEIGHT if view.is_constant(tensor) else SlotKind.ACTIVATION,
        quantize=quantize,
        spec=_spec(slot, opinions) if quantize else None,
        opinions=tuple(sorted(opinions, key=_rank)),
    )


def _rank(opinion: Opinion) -> tuple[bool, str, str]:
    return (opinion.stance is Stance.VETO, opinion.rule, opinion.reason)


def _spec(slot: Slot, opinions: list[Opinion]) -> QuantSpec:
    wishes = {opinion.spec for opinion in opinions if opinion.spec is not None}
    if len(wishes) > 1:
        rules = " and ".join(sorted({opinion.rule for opinion in opinions}))
        raise UsageError(
            f"the rules {rules} disagree on how to quantize it",
            fix="leave one of them out with place.skip_rules",
            where=str(slot),
        )
    return wishes.pop() if wishes else QuantSpec()


def _unmatched(view: GraphView, options: PlacementOptions) -> Iterator[str]:
    for option, patterns in (("exclude", options.exclude), ("only", options.only)):
        for pattern in patterns:
            if not any(fnmatchcase(node.name, pattern) for node in view.nodes):
                yield f"no node matches the pattern {pattern!r} of place.{option}"
