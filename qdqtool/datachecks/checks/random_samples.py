"""The samples were random numbers: ranges and accuracy mean nothing.

Random samples show whether a model can be quantized and built. Only samples similar to the real inputs give the right
ranges and the accuracy.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.claims import Says
from qdqtool.core.findings import Severity
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt."""
    if not evidence.meaningful:
        yield Doubt(
            subject="calibration" if evidence.calibrated else "evaluation",
            reason=f"the samples were random: {'ranges and accuracy mean' if evidence.calibrated else 'accuracy means'} nothing",
            fix="pass samples that are similar to the engine's inputs: --samples DATA",
        )


PLUGIN = DataCheck(code="DAT111", severity=Severity.WARNING, find=find, says=Says.RANDOM)
