"""A lint report as a report for continuous integration."""

from __future__ import annotations

import hashlib

from qdqtool.core.findings import LintFinding, LintReport
from qdqtool.core.wording import counted
from qdqtool.io.ci import CiReport, CiResult, CiRule
from qdqtool.matching.registry import RULES, rulebook
from qdqtool.placement.lint import codes


def ci_report(report: LintReport, model: str) -> CiReport:
    """Return every rule and its findings. `model` is the path relative to the repository's root, or an absolute one."""
    return CiReport(
        tool="lint",
        source=model,
        headline=f"{counted(report.pairs, 'Q/DQ pair')} checked for {report.target}.",
        rules=tuple(
            CiRule(code=code, name=name, level=rulebook().rules[name].severity.value, page=RULES.manual(name))
            for code, name in codes().items()
        ),
        results=tuple(_result(finding, model) for finding in (*report.findings, *report.waived)),
        notes=report.notes,
        category=report.target,
    )


def _result(finding: LintFinding, model: str) -> CiResult:
    """Return a finding with a fingerprint that does not depend on other parts of the model."""
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
