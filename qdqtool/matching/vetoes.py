"""Nodes that placement keeps float, and why; other checks do not ask for Q/DQ on them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from qdqtool.core.placement import Opinion, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.registry import Rulebook, rulebook


def refusals(flow: Flow, target: Target, book: Rulebook | None = None) -> dict[str, Opinion]:
    """Return the first veto on an input, by node, for this builder, from the float graph of a Q/DQ graph."""
    options = PlacementOptions(target=target.name, sm=target.sm)
    book = book or rulebook()
    found: dict[str, Opinion] = {}
    for name, rule in book.rules.items():
        for statement in (
            () if rule.place is None else book.asked(name, partial(rule.place, flow.plain, options))
        ):
            if isinstance(statement, Opinion) and statement.stance is Stance.VETO:
                found.setdefault(statement.slot.node, replace(statement, rule=name))
    return found
