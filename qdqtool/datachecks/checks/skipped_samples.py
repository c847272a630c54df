"""Samples hold NaN or Inf and were left out.

A few may be broken files; many mean that the preprocessing divides by zero or overflows, and then the values of the
others are in doubt as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield one doubt for each set with skipped samples."""
    for name, samples in (("calibration", evidence.calibration), ("evaluation", evidence.evaluation)):
        if samples is not None and samples.skipped:
            yield Doubt(
                subject=name,
                reason=f"{samples.skipped} of {samples.count} {name} samples contain NaN or Inf and were skipped",
                fix="check the first of them, and the preprocessing",
            )


PLUGIN = DataCheck(code="DAT110", severity=Severity.WARNING, find=find)
