"""An audit as a report for continuous integration."""

from __future__ import annotations

from collections import Counter

from qdqtool.auditing.baseline import fingerprint
from qdqtool.auditing.run import CHECKS
from qdqtool.core.audit import Audit
from qdqtool.core.findings import Finding
from qdqtool.core.wording import counted
from qdqtool.io.ci import CiReport, CiResult, CiRule


def ci_report(audit: Audit, source: str) -> CiReport:
    """Every check and what it found; `source` is the audited file."""
    formats = Counter(verdict.realised for verdict in audit.verdicts)
    by_format = ", ".join(f"{count} in {name}" for name, count in sorted(formats.items()))
    nodes = f"{counted(len(audit.verdicts), 'compute node')}: {by_format}. " if audit.verdicts else ""
    counts = audit.counts
    return CiReport(
        tool="audit",
        source=source,
        headline=f"{nodes}{counted(counts.kernels, 'kernel')}: {counts.compute} compute, {counts.qdq} only convert.",
        rules=tuple(_rule(name) for name in sorted(CHECKS.coded().values())),
        results=tuple(_result(finding) for finding in audit.findings),
        notes=audit.notes,
    )


def _rule(name: str) -> CiRule:
    check = CHECKS.load(name)
    return CiRule(code=check.code, name=name, level=check.severity.value, page=CHECKS.manual(name))


def _result(finding: Finding) -> CiResult:
    return CiResult(
        code=finding.code,
        level=finding.severity.value,
        subject=finding.subject,
        reason=finding.reason.rstrip("."),
        fix=finding.fix,
        evidence=tuple((place.file, place.place) for place in finding.evidence),
        fingerprint=fingerprint(finding),
        properties={} if finding.bytes is None else {"bytes": finding.bytes},
    )
