"""Which products do not compute in the format that is asked of them, as the rules find it."""

from __future__ import annotations

from functools import partial

from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow
from qdqtool.matching.registry import Rulebook, rulebook
from qdqtool.matching.rule import Violation


def losses(flow: Flow, target: Target, book: Rulebook | None = None) -> dict[str, Violation]:
    """For each such product the violation that says so; of several, that of the lowest code."""
    book = book or rulebook()
    found: dict[str, Violation] = {}
    for name, rule in sorted(book.rules.items(), key=lambda entry: entry[1].code):
        if rule.check is None or target.family not in rule.targets:
            continue
        for violation in book.asked(name, partial(rule.check, flow, target)):
            for product in violation.products:
                found.setdefault(product, violation)
    return found
