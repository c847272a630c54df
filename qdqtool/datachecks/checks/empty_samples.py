"""Useless samples: duplicates, one value everywhere, or a channel that never changes.

A repeated sample counts twice and shows nothing new; a constant one is usually a failed read, a blank image or padding.
Both make a set look larger than it is. A colour channel that is the same in every image was lost in preprocessing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt, SampleSet

_SHARE = 0.05
"""Largest tolerated share of repeated or constant samples in a set; natural sets contain single duplicates."""
_STILL = 1e-6
"""Largest deviation of a constant channel, as a share of the largest channel deviation; the rest is rounding."""


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield the doubts about each set: repeated samples, constant samples, and constant channels of an input."""
    if not evidence.meaningful:
        return
    yield from _of("calibration", evidence.calibration)
    if evidence.evaluation is not None:
        yield from _of("evaluation", evidence.evaluation)


def _of(name: str, samples: SampleSet) -> Iterator[Doubt]:
    seen = len(samples.digests)
    again = seen - len(set(samples.digests))
    if again > _SHARE * seen:
        most = Counter(samples.digests).most_common(1)[0][1]
        yield Doubt(
            subject=name,
            reason=f"{again} of {seen} {name} samples are duplicates; one occurs {counted(most, 'time')}",
            fix="remove duplicate samples",
        )
    if len(samples.constant) > _SHARE * seen:
        yield Doubt(
            subject=name,
            reason=f"{len(samples.constant)} of {seen} {name} samples have the same value everywhere, first "
            f"{samples.constant[0]!r}",
            fix="remove blank samples, or correct how they are read",
        )
    for each in samples.inputs:
        least = _STILL * max(each.deviations, default=0.0)
        dead = [number for number, deviation in enumerate(each.deviations) if deviation <= least]
        if 0 < len(dead) < len(each.deviations):
            yield Doubt(
                subject=name,
                reason=f"channel {dead[0]} of {each.name!r} is {each.means[dead[0]]:g} everywhere in all {name} samples",
                fix="correct how the samples are read: the other channels have values",
            )


PLUGIN = DataCheck(code="DAT109", severity=Severity.WARNING, find=find)
