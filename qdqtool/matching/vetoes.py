"""Which nodes placement keeps float, so that no other rule asks for Q/DQ on them."""

from __future__ import annotations

from functools import partial

from qdqtool.core.placement import Opinion, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow
from qdqtool.matching.registry import rulebook


def kept_float(flow: Flow, target: Target) -> frozenset[str]:
    """Nodes with an input that a rule vetoes for this builder, in the float graph behind a Q/DQ graph."""
    options = PlacementOptions(target=target.name, sm=target.sm)
    book = rulebook()
    return frozenset(
        statement.slot.node
        for name, rule in book.rules.items()
        if rule.place is not None
        for statement in book.asked(name, partial(rule.place, flow.plain, options))
        if isinstance(statement, Opinion) and statement.stance is Stance.VETO
    )
