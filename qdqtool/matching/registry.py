"""The registry of rules: those of `qdqtool.rules`, and those that other distributions add.

A rule of another distribution that cannot be loaded or that fails stops nothing: it is named, and the other rules
answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeVar

from qdqtool.errors import MissingPackage
from qdqtool.matching.rule import Rule
from qdqtool.plugins import Registry

RULES = Registry(package="qdqtool.rules")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rulebook:
    """Rules by name, in alphabetical order.

    Attributes:
        rules: the rules that could be loaded.
        notes: what went wrong with those of other distributions; grows while they are asked.
    """

    rules: dict[str, Rule]
    notes: list[str] = field(default_factory=list)

    def asked(self, name: str, part: Callable[[], Iterable[T]]) -> Iterator[T]:
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
    return Rulebook(_loaded())


def stopping() -> Rulebook:
    """Return the rules whose errors mean that nothing can be built."""
    return Rulebook({name: rule for name, rule in _loaded().items() if rule.stops})


def code_names() -> dict[str, str]:
    """Return the names of rules by code, in the order of codes."""
    return {rule.code: name for name, rule in sorted(rulebook().rules.items(), key=lambda one: one[1].code)}


@lru_cache(maxsize=1)
def _loaded() -> dict[str, Rule]:
    return {name: RULES.load(name) for name in sorted(RULES.coded().values())}
