"""Accuracy was measured on samples that the ranges were chosen on.

Ranges fit the calibration samples best, so the measured loss on those samples is too small; the quantized model can
even seem better than the float model. Samples are compared by the digest of their values.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt

_FIX = "use separate samples for evaluation (eval_samples), or slices such as x.npz[:200] and x.npz[200:]"


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt; none if nothing was compared."""
    if evidence.comparison is None or not (evidence.meaningful and evidence.calibrated):
        return
    if evidence.evaluation is None:
        yield Doubt(
            subject="evaluation",
            reason="accuracy was measured on the calibration samples",
            fix=_FIX,
        )
        return
    known = set(evidence.calibration.digests)
    shared = [
        name
        for name, digest in zip(evidence.evaluation.names, evidence.evaluation.digests, strict=True)
        if digest in known
    ]
    if shared:
        yield Doubt(
            subject="evaluation",
            reason=f"{len(shared)} of {counted(len(evidence.evaluation.names), 'evaluation sample is', 'evaluation samples are')} calibration samples too, "
            f"first {shared[0]!r}",
            fix=_FIX,
        )


PLUGIN = DataCheck(code="DAT102", severity=Severity.WARNING, find=find)
