"""The float model does clearly better when its pictures are prepared in another usual way.

Tried are the orders RGB and BGR and the usual scales: 0..255, 0..1, -1..1 and ImageNet's mean and standard deviation.
A model that was trained in one of these ways and is fed another one loses accuracy before anything is quantized, and
the ranges are chosen on values that it will never see.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from shlex import quote

from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt, Predictions, Variant

_SIGMAS, _PERHAPS = 2.6, 1.64
"""Limits of McNemar's test in standard deviations. Seven preparations are tried, so 2 would be too few.
Between the two limits the finding is only an info.
"""

_FEWEST = 0.25
"""Share of hits below which a variant explains nothing: the labels are wrong, or the samples are for another model."""


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt."""
    best = evidence.variant
    if best is None or not _explains(best.predictions) or (sigmas := _advantage(best)) <= _PERHAPS:
        return
    is_certain = sigmas > _SIGMAS
    yield Doubt(
        subject="preprocessing",
        reason=f"the float model is right on {_share(best.asis)} of {counted(len(best.asis.truth), 'sample')} as they are, and on "
        f"{_share(best.predictions)} with {best.name}" + ("" if is_certain else ", which may be luck"),
        fix=f"{'' if is_certain else 'if the model was trained so, '}prepare all samples like that{_settings(best)}",
        severity=Severity.ERROR if is_certain else Severity.INFO,
    )


def _settings(variant: Variant) -> str:
    """Return the options for this preparation; "" if the recipe does not prepare the samples."""
    options = " ".join(f"--set {quote(setting)}" for setting in variant.settings)
    return f": {options}" if options else ""


def _explains(variant: Predictions) -> bool:
    """Return True if the predictions distinguish classes. A model that always predicts one class is right on its samples, too."""
    return variant.hits >= _FEWEST * len(variant.truth) and len(set(variant.found)) > 1


def _advantage(variant: Variant) -> float:
    """Return the advantage of a variant in standard deviations: hits that it gains against hits that it loses."""
    won = lost = 0
    for new, old, truth in zip(
        variant.predictions.found, variant.asis.found, variant.asis.truth, strict=True
    ):
        won += new == truth != old
        lost += old == truth != new
    return (won - lost) / sqrt(won + lost) if won != lost else 0.0


def _share(predictions: Predictions) -> str:
    return f"{100 * predictions.hits / len(predictions.truth):.0f} %"


PLUGIN = DataCheck(code="DAT104", severity=Severity.ERROR, find=find)
