"""The float model does clearly better when its pictures are prepared in another usual way.

Tries the orders RGB and BGR and the usual scales: 0..255, 0..1, -1..1, ImageNet's mean and standard deviation, and
0..255 less Caffe's mean. A model that is fed other values than in its training loses accuracy before anything is
quantized. Its ranges are then chosen on wrong values.

With labels, the preparation with the most hits counts. Without labels, every image and its mirror image are classified:
the two should agree, and other pictures should get other classes. The agreement is given in nats (pointwise mutual
information). It finds a wrong scale nearly always, and a wrong order of colours only sometimes. A model that
distinguishes left from right, such as one that reads text, shows nothing, and preparations from metadata are believed.
Pictures of one class look like a network with a constant answer: then the finding says so, and stays a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from shlex import quote

from qdqtool.core.findings import Severity
from qdqtool.core.wording import counted
from qdqtool.datachecks.evidence import DataCheck, DataEvidence, Doubt, Mirrored, Predictions, Variant

_SIGMAS, _PERHAPS = 2.6, 1.64
"""Limits of McNemar's test in standard deviations. Seven preparations are tried, so 2 would be too few.
Between the two limits the finding is only an info.
"""

_MOST = 0.5
"""Share of the best agreement below which a preparation is wrong. The true ones of seven networks had at least 0.98 of it
on pictures of all classes.
"""
_FEWEST = 0.25
"""Share of hits below which a variant explains nothing: the labels are wrong, or the samples are for another model."""


def find(evidence: DataEvidence) -> Iterator[Doubt]:
    """Yield at most one doubt."""
    best = evidence.variant
    if evidence.mirrored is not None and evidence.mirrored.name:
        yield _without_labels(evidence.mirrored)
    if best is None or not _explains(best.predictions) or (sigmas := _advantage(best)) <= _PERHAPS:
        return
    is_certain = sigmas > _SIGMAS
    yield Doubt(
        subject="preprocessing",
        reason=f"the float model is right on {_share(best.asis)} of {counted(len(best.asis.truth), 'sample')} as they are, and on "
        f"{_share(best.predictions)} with {best.name}" + ("" if is_certain else ", which may be chance"),
        fix=f"{'' if is_certain else 'if the model was trained like that, '}prepare all samples like that{_settings(best.settings)}",
        severity=Severity.ERROR if is_certain else Severity.INFO,
    )


def _without_labels(found: Mirrored) -> Doubt:
    """Return an error if most of the agreement is missing, else a warning."""
    is_wrong = found.asis < _MOST * found.best and not found.few_classes
    doubt = ", unless all pictures are of few classes" if found.few_classes else ""
    return Doubt(
        subject="preprocessing",
        reason=f"the answers of the float model to {counted(found.samples, 'picture')} and to their mirror images agree by "
        f"{found.asis:.2f} nats as they are, and by {found.best:.2f} with {found.name}{doubt}",
        fix=f"if the model was trained like that, prepare all samples like that{_settings(found.settings)}",
        severity=Severity.ERROR if is_wrong else Severity.WARNING,
    )


def _settings(settings: tuple[str, ...]) -> str:
    """Return the options for this preparation; "" if the recipe does not prepare the samples."""
    options = " ".join(f"--set {quote(setting)}" for setting in settings)
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
