"""One word for a whole run, with its reasons."""

from __future__ import annotations

from collections.abc import Iterable

from qdqtool.core.findings import Finding, NodeVerdict, Severity
from qdqtool.core.wording import counted

GOOD, DOUBTFUL, BAD = VERDICTS = ("good", "doubtful", "bad")
"""Best first."""
_DATA = "DAT"


def judge(findings: Iterable[Finding], nodes: Iterable[NodeVerdict]) -> tuple[str, tuple[str, ...]]:
    """`good`, `doubtful` or `bad`, and why.

    `bad`: a finding is an error, so that the result should not be used. `doubtful`: the data or the accuracy is in
    doubt, nodes that were to be quantized are not, or nothing is quantized at all. Warnings about single kernels cost
    time, not trust, and leave a run `good`.
    """
    findings, nodes = tuple(findings), tuple(nodes)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    doubts = [
        finding
        for finding in findings
        if finding.severity is Severity.WARNING and finding.code.startswith(_DATA)
    ]
    lost = sum(node.requested and node.reason != "" for node in nodes)
    reasons = [f"{finding.code} {finding.reason}" for finding in (*errors, *doubts)]
    reasons += (
        [
            f"{lost} of {counted(sum(node.requested for node in nodes), 'requested node does', 'requested nodes do')} not run in the format asked for"
        ]
        if lost
        else []
    )
    if nodes and not any(node.is_quantized for node in nodes):
        reasons.append(f"none of {counted(len(nodes), 'compute node')} is quantized")
    return BAD if errors else DOUBTFUL if reasons else GOOD, tuple(reasons)


def is_judged(verdict: str, limit: str) -> bool:
    """Whether `verdict` is `limit` or worse; a run that was not judged is not."""
    return bool(verdict) and VERDICTS.index(verdict) >= VERDICTS.index(limit)
