"""Findings that were there before: only new ones should fail a build.

A baseline is the JSON of an earlier audit (`qdqtool audit ... --json > baseline.json`). Two findings are the same when
code and subject are; numbers of kernels in layer names do not count, since they change with every build.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from qdqtool.core.audit import Audit
from qdqtool.core.findings import Finding
from qdqtool.core.wording import counted
from qdqtool.trt.names import stem, without_mark


def fingerprint(finding: Finding) -> str:
    """Sixteen hexadecimal digits that stay the same from build to build."""
    text = f"{finding.code} {stem(without_mark(finding.subject))}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def without_known(audit: Audit, baseline: Audit) -> Audit:
    """`audit` without the findings that `baseline` has; how many were left out, and how many are gone, is noted.

    Where a baseline has a finding twice, two are left out.
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
