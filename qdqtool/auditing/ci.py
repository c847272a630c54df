"""Audits in continuous integration: the report, with only the findings that a baseline does not have."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from qdqtool.auditing.full_audit import CHECKS
from qdqtool.core.findings import Audit, Finding
from qdqtool.core.wording import counted
from qdqtool.io.ci import CiReport, CiResult, CiRule
from qdqtool.trt.names import stem, without_mark

# --- report ----------------------------------------------------------------------------------------------------------


def ci_report(audit: Audit, source: str) -> CiReport:
    """Return every check with its findings as a report; `source` is the audited file."""
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


# --- baseline --------------------------------------------------------------------------------------------------------
# Findings that were there before: only new ones should fail a build.
#
# A baseline is the JSON of an earlier audit (`qdqtool audit ... --json > baseline.json`). Two findings are the same when
# code and subject are; numbers of kernels in layer names do not count, since they change with every build.


def fingerprint(finding: Finding) -> str:
    """Return sixteen hexadecimal digits that identify a finding and stay the same from build to build."""
    text = f"{finding.code} {stem(without_mark(finding.subject))}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def without_known(audit: Audit, baseline: Audit) -> Audit:
    """Return `audit` without the findings of `baseline`.

    Notes give the number of findings that are hidden, and of those that no longer occur.

    If a baseline has a finding twice, two are hidden.
    """
    known = Counter(map(fingerprint, baseline.findings))
    left: list[Finding] = []
    for finding in audit.findings:
        key = fingerprint(finding)
        if known[key]:
            known[key] -= 1
        else:
            left.append(finding)
    old = len(audit.findings) - len(left)
    gone = sum(known.values())
    note = f"{counted(old, 'finding is', 'findings are')} in the baseline and not shown; {gone} of the baseline are gone"
    return replace(audit, findings=tuple(left), notes=(*audit.notes, note))
