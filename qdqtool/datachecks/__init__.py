"""Checks of the user's data: samples, labels, preprocessing and recipe, and the resulting accuracy."""

from __future__ import annotations

from qdqtool.core.advice import adjust_severity, promises
from qdqtool.core.claims import of_reason
from qdqtool.core.findings import Finding, waivers
from qdqtool.datachecks.evidence import DataCheck, DataEvidence
from qdqtool.plugins import Registry

CHECKS = Registry(package="qdqtool.datachecks.checks")


def check_data(evidence: DataEvidence, ignore: tuple[str, ...] = ()) -> tuple[Finding, ...]:
    """Return all findings, the most severe first; `ignore` lists codes or names of checks to skip."""
    findings: list[Finding] = []
    waived = waivers(ignore)
    for name in sorted(CHECKS.coded().values()):
        check: DataCheck = CHECKS.load(name)
        if {name, check.code} & waived.keys():
            continue
        findings += [
            Finding(
                code=check.code,
                check=name,
                severity=adjust_severity(raw.severity or check.severity, raw.fix),
                subject=raw.subject,
                reason=raw.reason,
                fix=raw.fix,
                hazard=CHECKS.manual(name).partition("\n")[0],
                claims=(
                    *(() if check.says is None else (of_reason(check.says),)),
                    *promises(raw.fix, of_finding=True),
                ),
            )
            for raw in check.find(evidence)
        ]
    return tuple(sorted(findings, key=lambda finding: (-finding.severity.rank, finding.code)))
