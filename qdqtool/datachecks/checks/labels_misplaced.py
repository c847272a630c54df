"""The labels are shifted or permuted: another assignment of classes fits the float model far better.

Shifted by one: a background class that only one side counts. Permuted: classes sorted by name on one side and by number
on the other. A permutation is learned on one half of the samples and tested on the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt, Predictions

# Labelled samples below which a shift of classes may be chance.
_FEWEST = 20
_BETTER = 2.0
"""Required number of hits with other labels, as a multiple of the hits with the given labels."""


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt."""
    seen = evidence.predictions
    if seen is None or len(seen.truth) < _FEWEST:
        return
    count = len(seen.truth)
    for step, words in ((1, "one too low"), (-1, "one too high")):
        hits = sum(found == truth + step for found, truth in zip(seen.found, seen.truth, strict=True))
        if hits > _BETTER * seen.hits and 4 * hits > count:
            yield Doubt(
                subject="labels",
                reason=f"the labels seem to be {words}: {hits} of {counted(count, 'sample fits', 'samples fit')} then, {seen.hits} without the shift",
                fix="shift the labels by one: only one side counts a background class",
            )
            return
    right, direct = _renamed(seen)
    half = count - count // 2
    usual = max(Counter(seen.truth[::2]).values())
    # Where most samples are of one class, every name that was learned is that class.
    if right > _BETTER * max(direct, usual) and 4 * right > half:
        yield Doubt(
            subject="labels",
            reason=f"the classes seem to be numbered differently: with other numbers {right} of {counted(half, 'sample fits', 'samples fit')}, "
            f"{direct} without that",
            fix="number the classes like the model",
        )


def _renamed(seen: Predictions) -> tuple[int, int]:
    """Return the hits on every second sample: with a class mapping learned on the other samples, and with the given labels."""
    names: defaultdict[int, Counter[int]] = defaultdict(Counter)
    pairs = list(zip(seen.found, seen.truth, strict=True))
    for found, truth in pairs[1::2]:
        names[found][truth] += 1
    learned = {found: counts.most_common(1)[0][0] for found, counts in names.items()}
    judged = pairs[::2]
    return (
        sum(learned.get(found) == truth for found, truth in judged),
        sum(found == truth for found, truth in judged),
    )


PLUGIN = DataCheck(code="DAT106", severity=Severity.ERROR, find=find)
