"""The accuracy of the float model is no better than chance.

Then the labels do not belong to the samples, or the samples are not like the training data. Figures about quantization
mean nothing until this is corrected: "0.0 % -> 0.0 %, within noise" is not a success.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt

_FEWEST = 10
"""Fewest samples for this check; with fewer, chance decides."""


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt."""
    seen = evidence.predictions
    if seen is None or len(seen.truth) < _FEWEST or seen.classes < 2:
        return
    count, chance = len(seen.truth), 1 / seen.classes
    limit = count * chance + 2 * (count * chance * (1 - chance)) ** 0.5
    if seen.hits > limit:
        return
    yield Doubt(
        subject="labels",
        reason=f"the float model is right on {seen.hits} of {counted(count, 'sample')}, which is no better than guessing among {seen.classes} classes",
        fix="check that labels and samples are in the same order, and that samples are prepared as in training",
    )


PLUGIN = DataCheck(code="DAT105", severity=Severity.ERROR, find=find)
