"""The float model does clearly better when its pictures are prepared in another usual way.

Tried are the orders RGB and BGR and the usual scales: 0..255, 0..1, -1..1 and ImageNet's mean and standard deviation.
A model that was trained in one of these ways and is fed another one loses accuracy before anything is quantized, and
the ranges are chosen on values that it will never see.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt, Predictions, Variant

_SIGMAS = 2.6
"""Of McNemar's test; seven variants are tried, so 2 would be too few."""

_FEWEST = 0.25
"""Share of hits below which a variant explains nothing: then the labels are wrong, or the model is another one."""


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """One doubt at most: the best variant."""
    better = [each for each in evidence.variants if _explains(each.predictions) and _is_better(each)]
    if not better:
        return
    best = max(better, key=lambda each: each.predictions.hits)
    yield Doubt(
        subject="preprocessing",
        reason=f"the float model is right on {_share(best.asis)} of {counted(len(best.asis.truth), 'sample')} as they are, and on "
        f"{_share(best.predictions)} with {best.name}",
        fix=f"prepare all samples like that in samples.preprocess: {best.name}",
    )


def _explains(variant: Predictions) -> bool:
    """Whether it tells classes apart: a model that always says the same is right on samples of that class, too."""
    return variant.hits >= _FEWEST * len(variant.truth) and len(set(variant.found)) > 1


def _is_better(variant: Variant) -> bool:
    won = lost = 0
    for new, old, truth in zip(
        variant.predictions.found, variant.asis.found, variant.asis.truth, strict=True
    ):
        won += new == truth != old
        lost += old == truth != new
    return won > lost and (won - lost) ** 2 > _SIGMAS**2 * (won + lost)


def _share(predictions: Predictions) -> str:
    return f"{100 * predictions.hits / len(predictions.truth):.0f} %"


PLUGIN = DataCheck(code="DAT104", severity=Severity.ERROR, find=find)
