"""What might help an engine: the candidates of all rules, settings that let float nodes be quantized, and static fixes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from qdqtool.auditing.context import AuditContext
from qdqtool.core.advice import settings_in
from qdqtool.core.audit import Audit
from qdqtool.graph.model import Model
from qdqtool.matching.candidates import BuiltGraph, Candidate, Goal
from qdqtool.matching.registry import Rulebook, rulebook
from qdqtool.pipeline.autofix.drafts import DraftModel, Edits
from qdqtool.placement.repair import gaining_fixes

_PLACE = "place."
_BY_NAME = ("place.exclude=", "place.exclude_ops=", "place.kept_float=", "place.only=")
"""Settings of which a recipe names nodes: these are float on purpose."""


def candidates(
    model: Model, context: AuditContext, found: Audit, draft: DraftModel, edits: Edits
) -> tuple[Candidate, ...]:
    """Every candidate for an engine, by goal and then in the order of the rules' codes, static fixes last.

    They are cheap to make; a build proves them. `edits` are those that `draft` has in this engine.
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
            (*_proposed(built, rulebook()), *_allowed(found, draft, edits), *_static(model)),
            key=lambda candidate: order.index(candidate.goal),
        )
    )


def _proposed(built: BuiltGraph, book: Rulebook) -> Iterator[Candidate]:
    for name, rule in sorted(book.rules.items(), key=lambda entry: entry[1].code):
        if rule.candidates is not None:
            for candidate in book.asked(name, partial(rule.candidates, built)):
                yield replace(candidate, rule=name)


def _allowed(found: Audit, draft: DraftModel, edits: Edits) -> Iterator[Candidate]:
    """The settings with which placement would quantize a node that it kept float, as the audit prints them."""
    for verdict in found.verdicts:
        settings = () if verdict.is_quantized else settings_in(verdict.fix)
        if not settings or any(one.startswith(_BY_NAME) or not one.startswith(_PLACE) for one in settings):
            continue
        more = draft.allowed_by(settings, edits)
        if any(edit.slot.node == verdict.node for edit in more):
            text = " ".join(f"--set {shlex.quote(one)}" for one in settings)
            yield Candidate(subject=verdict.node, goal=Goal.ALLOWED, text=text, edits=more, settings=settings)


def _static(model: Model) -> Iterator[Candidate]:
    """The fixes that `qdqtool repair` would make, each by itself."""
    for change in gaining_fixes(model):
        yield Candidate(
            subject=change.subject, goal=Goal.CHEAPER, text=change.what, edits=change.edits, rule=change.rule
        )
