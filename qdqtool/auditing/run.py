"""Puts verdicts, checks and counts together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext, stage
from qdqtool.auditing.counts import counts
from qdqtool.auditing.logged import verdicts_of_log
from qdqtool.core.advice import followed, graded, is_worth_trying, repair_commands, settings_in
from qdqtool.core.audit import Audit
from qdqtool.core.claims import IS_GONE_THEN
from qdqtool.core.engine import Engine
from qdqtool.core.findings import Finding, Verdict
from qdqtool.core.placement import Placement
from qdqtool.core.waivers import waivers
from qdqtool.core.wording import counted
from qdqtool.engine.optimum import about, at_optimum
from qdqtool.errors import UsageError
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView
from qdqtool.plugins import Registry

CHECKS = Registry(package="qdqtool.auditing.checks")


def audit(
    model: Model | None,
    engine: Engine,
    placement: Placement | None = None,
    *,
    float_view: GraphView | None = None,
    ignore: tuple[str, ...] = (),
    targets: tuple[str, ...] = (),
) -> Audit:
    """Verdicts for every compute node, findings of every check, and counts.

    Args:
        model: the Q/DQ model that the engine was built from; None audits the layer information alone.
        engine: its layers.
        placement: the decisions that made the model; None for somebody else's Q/DQ.
        float_view: the model before Q/DQ; nodes it has and `model` has not are noted.
        ignore: codes or names of checks that are left out, with a reason ("QDQ210=known") or without.
        targets: architectures the engine was built for ("sm86"), as far as known.

    Every node that placement requested is INT8 or has a finding that says why not, unless that check is ignored.
    """
    return examine(stage(engine, model, placement, targets=targets), float_view=float_view, ignore=ignore)


def examine(
    context: AuditContext, *, float_view: GraphView | None = None, ignore: tuple[str, ...] = ()
) -> Audit:
    """The audit of a scene that may also hold costs, times and another engine to compare with.

    Without a model the log of the build gives the verdicts, where there is one.

    `ignore` may name checks of other steps, as `audit.ignore` does; `check_ignored` refuses what nobody knows.
    """
    waived = waivers(ignore)
    findings, left_out = _findings(context, waived)
    told = context.log if context.view is None else None
    return Audit(
        verdicts=verdicts_of_log(told, context.engine) if told else context.verdicts,
        findings=findings,
        counts=counts(at_optimum(context.engine)),
        notes=(*_notes(context, float_view), *left_out),
    )


def check_ignored(ignore: Iterable[str]) -> None:
    """Refuse names and codes that no check of an engine has.

    Raises:
        UsageError: there is one.
    """
    if not ignore:
        return
    known = known_checks()
    for word in waivers(ignore):
        if word not in known:
            close = get_close_matches(word, known, n=1)
            raise UsageError(
                f"no check has the code or the name {word!r}",
                fix=f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(known)}",
                where="--ignore",
            )


def known_checks() -> tuple[str, ...]:
    """Codes and names of all checks."""
    coded = CHECKS.coded()
    return (*coded, *sorted(coded.values()))


def with_findings(known: Audit, others: tuple[Finding, ...], ignore: tuple[str, ...] = ()) -> Audit:
    """The same audit with findings of other steps put in their places."""
    waived = waivers(ignore)
    wanted = (found for found in others if not {found.check, found.code} & waived.keys())
    return replace(known, findings=_sorted((*known.findings, *wanted)))


def _findings(
    context: AuditContext, waived: Mapping[str, str]
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """The findings, and what was left out for which reason."""
    found: list[Finding] = []
    notes: list[str] = []
    for name in sorted(CHECKS.coded().values()):
        check: Check = CHECKS.load(name)
        reason = waived.get(name, waived.get(check.code))
        if reason is None:
            found.extend(_finding(name, check, draft, context) for draft in check.find(context))
        elif reason and (count := len(tuple(check.find(context)))):
            notes.append(f"{counted(count, 'finding')} of {check.code} {name} left out: {reason}")
    return _sorted(found), tuple(notes)


def _sorted(found: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(found, key=lambda finding: (-finding.severity.rank, finding.code)))


def _finding(name: str, check: Check, draft: Draft, context: AuditContext) -> Finding:
    """A draft with the code and name of its check, the measured time of its layer, and the log lines that tell of it."""
    ms = context.ms(draft.subject)
    measured = "" if ms is None else f" (this layer takes {ms:.4f} ms)"
    fix = followed(draft.fix, command=context.way_out(draft.layers or (draft.subject,)), at=draft.subject)
    commands = is_worth_trying(fix) and (settings_in(fix) or repair_commands(fix))
    return Finding(
        code=check.code,
        check=name,
        severity=graded(draft.severity or check.severity, fix),
        subject=draft.subject,
        reason=f"{draft.reason}{measured}",
        fix=fix,
        bytes=draft.bytes,
        evidence=(*draft.evidence, *context.in_log(draft.subject)),
        hazard=CHECKS.manual(name).partition("\n")[0],
        claims=(*draft.claims, *(IS_GONE_THEN,) * bool(commands)),
    )


def _notes(context: AuditContext, float_view: GraphView | None) -> tuple[str, ...]:
    engine, told = context.engine, context.verdicts
    lost = sum(verdict.verdict is Verdict.NOT_FOUND for verdict in told)
    unknown = sum(number for _, number in engine.unknown_formats)
    notes = (
        (
            engine.unread,
            f"{counted(engine.unread, 'record of the layer information was', 'records of the layer information were')} not understood",
        ),
        (unknown, f"{counted(unknown, 'tensor has', 'tensors have')} a type in words nobody recognises"),
        (
            told and lost == len(told),
            "no layer names any node of this model: the layer information belongs to another one",
        ),
    )
    return (
        *engine.notes,
        *about(engine),
        *context.rule_notes,
        *(text for wanted, text in notes if wanted),
        *_gone(context.view, float_view),
    )


def _gone(view: GraphView | None, float_view: GraphView | None) -> tuple[str, ...]:
    """Which nodes of the float model the Q/DQ model has lost."""
    if view is None or float_view is None:
        return ()
    gone = sorted({node.name for node in float_view.nodes} - {node.name for node in view.nodes})
    return (
        (
            f"{counted(len(gone), 'node of the float model is', 'nodes of the float model are')} not in the Q/DQ model, first {gone[0]!r}",
        )
        if gone
        else ()
    )
