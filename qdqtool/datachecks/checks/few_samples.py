"""Too few calibration samples: other samples would have given other ranges.

The calibration samples are split into random halves, and each half is calibrated separately (99.99 % of the
magnitudes). If the two disagree, the ranges have not converged, and more samples would change them. There is not afixed
number of samples: 30 can be plenty and 300 too few. A single sample cannot be split, and shows nothing about others.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import CONVERGED, DataCheck, DataEvidence, Doubt

_FIX = "calibrate on more samples, similar to those that the engine will see"


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt."""
    count, spread = evidence.calibration.count, evidence.spread
    if not (evidence.meaningful and evidence.calibrated):
        return
    if count == 1:
        reason = "1 calibration sample: it is unknown how much ranges vary between samples"
        yield Doubt(subject="calibration", reason=reason, fix=_FIX, severity=Severity.ERROR)
    elif spread is not None and spread.typical > CONVERGED:
        yield Doubt(
            subject="calibration",
            reason=f"the ranges have not converged: two halves of {counted(spread.samples, 'calibration sample differs', 'calibration samples differ')} by "
            f"{spread.typical:.0%} for the median tensor, by {spread.worst:.0%} for {spread.tensor!r}",
            fix=_FIX,
        )


PLUGIN = DataCheck(code="DAT101", severity=Severity.WARNING, find=find)
