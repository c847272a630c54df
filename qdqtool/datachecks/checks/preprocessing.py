"""The float model does clearly better when its pictures are prepared in another usual way.

Tried are the orders RGB and BGR and the usual scales: 0..255, 0..1, -1..1 and ImageNet's mean and standard deviation.
A model that was trained in one of these ways and is fed another one loses accuracy before anything is quantized, and
the ranges are chosen on values that it will never see.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt, Predictions, Variant

_SIGMAS = 2.6
"""Of McNemar's test; seven variants are tried, so 2 would be too few."""

_FEWEST = 0.25
"""Share of hits below which a variant explains nothing: then the labels are wrong, or the model is another one."""


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """One doubt at most: the best variant."""
    asis = evidence.predictions
    better = [
        each
        for each in evidence.variants
        if asis is not None
        and each.predictions.hits >= _FEWEST * len(each.predictions.truth)
        and _is_better(each.predictions, asis)
    ]
    if asis is None or not better:
        return
    best: Variant = max(better, key=lambda each: each.predictions.hits)
    tried = len(best.predictions.truth)
    yield Doubt(
        subject="preprocessing",
        reason=f"the float model is right on {_share(asis, tried)} of the first {tried} samples as they are, and on "
        f"{_share(best.predictions, tried)} with {best.name}",
        fix=f"prepare all samples like that in samples.preprocess: {best.name}",
    )


def _is_better(variant: Predictions, asis: Predictions) -> bool:
    # The variants are tried on the first of the samples only.
    rows = zip(variant.found, asis.found, variant.truth, strict=False)
    won = lost = 0
    for new, old, truth in rows:
        won += new == truth != old
        lost += old == truth != new
    return won > lost and (won - lost) ** 2 > _SIGMAS**2 * (won + lost)


def _share(predictions: Predictions, first: int) -> str:
    rows = zip(predictions.found[:first], predictions.truth[:first], strict=True)
    return f"{100 * sum(found == truth for found, truth in rows) / first:.0f} %"


PLUGIN = DataCheck(code="DAT104", severity=Severity.ERROR, find=find)
