"""What might help an engine: the candidates of all rules, and their static fixes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from qdqtool.auditing.context import AuditContext
from qdqtool.core.audit import Audit
from qdqtool.graph.model import Model
from qdqtool.matching.candidates import BuiltGraph, Candidate, Goal
from qdqtool.matching.registry import Rulebook, rulebook
from qdqtool.placement.repair import gaining_fixes


def candidates(model: Model, context: AuditContext, found: Audit) -> tuple[Candidate, ...]:
    """Every candidate for an engine, by goal and then in the order of the rules' codes, static fixes last.

    They are cheap to make; a build proves them.
    """
    built = BuiltGraph(
        model=model,
        placement=context.placement,
        engine=context.engine,
        wiring=context.wiring,
        nodes=tuple(zip(context.cases, context.verdicts, strict=True)),
        findings=found.findings,
    )
    order = list(Goal)
    return tuple(
        sorted(
            (*_proposed(built, rulebook()), *_static(model)),
            key=lambda candidate: order.index(candidate.goal),
        )
    )


def _proposed(built: BuiltGraph, book: Rulebook) -> Iterator[Candidate]:
    for name, rule in sorted(book.rules.items(), key=lambda entry: entry[1].code):
        if rule.candidates is not None:
            for candidate in book.asked(name, partial(rule.candidates, built)):
                yield replace(candidate, rule=name)


def _static(model: Model) -> Iterator[Candidate]:
    """The fixes that `qdqtool repair` would make, each by itself."""
    for change in gaining_fixes(model):
        yield Candidate(
            subject=change.subject, goal=Goal.CHEAPER, text=change.what, edits=change.edits, rule=change.rule
        )
