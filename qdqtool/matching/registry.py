"""The registry of rules: those of `qdqtool.rules`, and those that other distributions add.

A rule of another distribution that cannot be loaded or that fails stops nothing: it is named, and the other rules
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypeVar

from qdqtool.core.placement import Opinion, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.errors import MissingPackage
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation
from qdqtool.plugins import Registry

RULES = Registry(package="qdqtool.rules")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rulebook:
    """Rules by name, in alphabetical order.

    Attributes:
        rules: the rules that could be loaded.
        notes: errors of rules of other distributions; grows while rules are asked.
    """

    rules: dict[str, Rule]
    notes: list[str] = field(default_factory=list)

    def results_of(self, name: str, part: Callable[[], Iterable[T]]) -> Iterator[T]:
        """Yield the results of a part of the rule `name`; nothing if a rule of another distribution fails."""
        if RULES.owner(name) is None:
            yield from part()
            return
        try:
            with RULES.running(name):
                answers = tuple(part())
        except MissingPackage as error:
            self.notes.append(f"{error.what}; the rule is skipped")
            return
        yield from answers


def rulebook() -> Rulebook:
    """Return all rules, which are loaded once; the notes belong to this call."""
    return Rulebook(_load_rules())


def stopping() -> Rulebook:
    """Return the rules whose errors mean that nothing can be built."""
    return Rulebook({name: rule for name, rule in _load_rules().items() if rule.stops})


def code_names() -> dict[str, str]:
    """Return the names of rules by code, in the order of codes."""
    return {
        rule.code: name for name, rule in sorted(rulebook().rules.items(), key=lambda entry: entry[1].code)
    }


@lru_cache(maxsize=1)
def _load_rules() -> dict[str, Rule]:
    return {name: RULES.load(name) for name in sorted(RULES.coded().values())}


# --- losses ----------------------------------------------------------------------------------------------------------
# Compute nodes that do not compute in the format that is asked of them, according to the rules.


def violations(flow: Flow, target: Target, book: Rulebook | None = None) -> Iterator[tuple[str, Violation]]:
    """Yield the violations that the rules find for a builder, with the rule's code and severity, in the order of codes."""
    book = book or rulebook()
    for name, rule in sorted(book.rules.items(), key=lambda entry: entry[1].code):
        if rule.check is not None and target.family in rule.targets:
            for violation in book.results_of(name, partial(rule.check, flow, target)):
                yield rule.code, replace(violation, severity=violation.severity or rule.severity)


def losses(flow: Flow, target: Target) -> dict[str, Violation]:
    """Return one violation by name of the affected compute node; of several, the one with the lowest code."""
    by_node: dict[str, Violation] = {}
    for _, violation in violations(flow, target):
        for product in violation.products:
            by_node.setdefault(product, violation)
    return by_node


# --- vetoes ----------------------------------------------------------------------------------------------------------
# Nodes that placement keeps float, and why; other checks do not ask for Q/DQ on them.


def refusals(flow: Flow, target: Target, book: Rulebook | None = None) -> dict[str, Opinion]:
    """Return the first veto on an input, by node, for this builder, from the float graph of a Q/DQ graph."""
    options = PlacementOptions(target=target.name, sm=target.sm)
    book = book or rulebook()
    vetoes: dict[str, Opinion] = {}
    for name, rule in book.rules.items():
        for statement in (
            () if rule.place is None else book.results_of(name, partial(rule.place, flow.plain, options))
        ):
            if isinstance(statement, Opinion) and statement.stance is Stance.VETO:
                vetoes.setdefault(statement.slot.node, replace(statement, rule=name))
    return vetoes
