"""Markdown for pull-request comments and job summaries."""

from __future__ import annotations

import re

from qdqtool.core.audit import Audit
from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Finding, Severity

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~!])")


def write(audit: Audit, source: str) -> str:
    """A line of figures, then a table of findings; informative ones are folded away."""
    int8 = sum(verdict.precision is DType.INT8 for verdict in audit.verdicts)
    nodes = f"{int8} of {len(audit.verdicts)} compute nodes run INT8. " if audit.verdicts else ""
    counts = audit.counts
    lines = [
        f"### qdqtool audit of {_text(source)}",
        "",
        f"{nodes}{counts.kernels} kernels: {counts.compute} compute, {counts.qdq} only convert.",
        "",
    ]
    loud = [finding for finding in audit.findings if finding.severity is not Severity.INFO]
    quiet = [finding for finding in audit.findings if finding.severity is Severity.INFO]
    lines += _table(loud) if loud else ["No warnings."]
    if quiet:
        lines += ["", f"<details><summary>{len(quiet)} notes</summary>", "", *_table(quiet), "", "</details>"]
    lines += ["", *(f"> {_text(note)}" for note in audit.notes)] if audit.notes else []
    return "\n".join(lines) + "\n"


def _table(findings: list[Finding]) -> list[str]:
    rows = [
        f"| {finding.severity.value} | {finding.code} | {_text(finding.subject)} | {_text(finding.reason)} "
        f"| {_text(finding.fix)} |"
        for finding in findings
    ]
    return ["| severity | code | subject | reason | fix |", "|---|---|---|---|---|", *rows]


def _text(words: str) -> str:
    """Words that stay words, whatever a layer is called."""
    return _SPECIAL.sub(r"\\\1", re.sub(r"\s+", " ", words))
