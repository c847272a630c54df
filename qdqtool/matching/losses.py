"""Compute nodes that do not compute in the format that is asked of them, according to the rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.registry import Rulebook, rulebook
from qdqtool.matching.rule import Violation


def violations(flow: Flow, target: Target, book: Rulebook | None = None) -> Iterator[tuple[str, Violation]]:
    """Yield the violations that the rules find for a builder, with the rule's code and severity, in the order of codes."""
    book = book or rulebook()
    for name, rule in sorted(book.rules.items(), key=lambda entry: entry[1].code):
        if rule.check is not None and target.family in rule.targets:
            for violation in book.asked(name, partial(rule.check, flow, target)):
                yield rule.code, replace(violation, severity=violation.severity or rule.severity)


def losses(flow: Flow, target: Target) -> dict[str, Violation]:
    """Return one violation by name of the affected compute node; of several, the one with the lowest code."""
    found: dict[str, Violation] = {}
    for _, violation in violations(flow, target):
        for product in violation.products:
            found.setdefault(product, violation)
    return found
