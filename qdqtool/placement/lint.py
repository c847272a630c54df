"""Runs all lint rules on a Q/DQ model: the problem, its effect in TensorRT, and the fix."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial

from qdqtool.core.advice import adjust_severity, as_float, format_fix, repairing
from qdqtool.core.findings import LintFinding, LintReport, Severity
from qdqtool.core.target import Target
from qdqtool.core.wording import Command, count_noun
from qdqtool.errors import UsageError
from qdqtool.graph.provenance import origin
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.sparse import sparse_nodes, sparsity_words
from qdqtool.graph.view import Model
from qdqtool.io.ci import CiReport, CiResult, CiRule
from qdqtool.matching.rule import RULES, Rulebook, code_names, rulebook
from qdqtool.trt.causes import list_shown_by
from qdqtool.trt.ops import QDQ


def lint(
    model: Model,
    target: Target | None = None,
    *,
    select: tuple[str, ...] = (),
    waivers: Mapping[str, str] | None = None,
) -> LintReport:
    """Find all problems of the Q/DQ nodes of a model, in graph order, in time linear in the number of nodes.

    Args:
        model: any ONNX model; one without Q/DQ has no findings.
        target: the builder and the GPUs.
        select: codes to check; all if empty.
        waivers: codes or names of rules whose findings are accepted, and why.

    Raises:
        UsageError: an unknown code.
    """
    target = target or Target()
    book = rulebook()
    rules = {name: rule for name, rule in book.rules.items() if rule.check is not None}
    waivers = {
        rules[word].code if word in rules else word: reason for word, reason in (waivers or {}).items()
    }
    _check({rule.code for rule in rules.values()}, (*select, *waivers))
    flow = Flow(model)
    findings = [
        replace(finding, waiver=waivers.get(finding.code, ""))
        for name, rule in rules.items()
        if target.family in rule.targets and (not select or rule.code in select)
        for finding in _findings(book, name, flow, target)
    ]
    position = {node.name: node.position for node in model.view.nodes}
    findings.sort(key=lambda finding: (position.get(finding.node, -1), finding.code, finding.reason))
    sparse = sparse_nodes(model.view)
    return LintReport(
        target=target.name,
        findings=tuple(finding for finding in findings if finding.code not in waivers),
        waived=tuple(finding for finding in findings if finding.code in waivers),
        pairs=len(flow.pairs),
        notes=(*model.notes, *book.notes, *([sparsity_words(sparse)] if sparse else [])),
        origin=origin(model),
    )


def codes() -> dict[str, str]:
    """Return the names of the rules that can report findings, by code, in the order of codes."""
    rules = rulebook().rules
    return {code: name for code, name in code_names().items() if rules[name].check is not None}


def _findings(book: Rulebook, name: str, flow: Flow, target: Target) -> Iterator[LintFinding]:
    rule = book.rules[name]
    assert rule.check is not None
    for wrong in book.results_of(name, partial(rule.check, flow, target)):
        fix = format_fix(wrong.fix, command=_without(flow, wrong.node), at=wrong.node)
        refused = (wrong.severity or rule.severity) is Severity.ERROR
        yield LintFinding(
            code=rule.code,
            rule=name,
            severity=adjust_severity(wrong.severity or rule.severity, fix),
            node=wrong.node,
            reason=wrong.reason,
            effect=wrong.effect,
            fix=fix,
            causes=tuple(cause.name for cause in list_shown_by(rule.code)) if refused else (),
        )


def _without(flow: Flow, name: str) -> str:
    """Return the command that removes the Q/DQ of a lint finding, from a node or from all readers of a pair; "" if there is none."""
    node = flow.view.by_name.get(name)
    if node is None:
        return ""
    if node.op in QDQ:
        fixed = len(node.inputs) > 1 and flow.view.is_constant(node.inputs[1])
        return f"{repairing(to_float=[name])} removes it" if fixed else ""
    read = any(flow.origin(node, index) is not None for index in range(len(node.inputs)))
    return as_float([name], placed=False) if read else ""


def _check(codes: set[str], named: tuple[str, ...]) -> None:
    unknown = sorted(set(named) - codes)
    if unknown:
        begun = sorted(code for code in codes if code.startswith(unknown[0]))
        near = begun or get_close_matches(unknown[0], sorted(codes), n=1)
        raise UsageError(
            f"unknown lint rules: {', '.join(map(repr, unknown))}",
            fix=(f"did you mean {near[0]}? " if near else "")
            + f"{Command('lint', ('--rules',))} lists the codes",
        )


# --- lint ci ----------------------------------------------------------------------------------------------------------
# A lint report as a report for continuous integration.


def ci_report(report: LintReport, model: str) -> CiReport:
    """Return every rule and its findings. `model` is the path relative to the repository's root, or an absolute one."""
    return CiReport(
        tool="lint",
        source=model,
        headline=f"{count_noun(report.pairs, 'Q/DQ pair')} checked for {report.target}.",
        rules=tuple(
            CiRule(code=code, name=name, level=rulebook().rules[name].severity.value, page=RULES.manual(name))
            for code, name in codes().items()
        ),
        results=tuple(_result(finding, model) for finding in (*report.findings, *report.waived)),
        notes=report.notes,
        category=report.target,
    )


def _result(finding: LintFinding, model: str) -> CiResult:
    """Return a finding with a fingerprint that stays the same when other parts of the model change."""
    key = f"{finding.code}\0{finding.node}\0{model}".encode("utf-8", "surrogatepass")
    return CiResult(
        code=finding.code,
        level=finding.severity.value,
        subject=finding.node,
        reason=f"{finding.reason}: {finding.effect}",
        fix=finding.fix,
        waiver=finding.waiver,
        fingerprint=hashlib.sha256(key).hexdigest()[:16],
    )
