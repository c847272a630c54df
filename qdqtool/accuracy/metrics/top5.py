"""Share of samples whose label is among the five best classes, in percent; only for six classes and more."""

from __future__ import annotations

from qdqtool.accuracy.metric import Floats, Hit
from qdqtool.accuracy.task import rank


def _hit(scores: Floats, truth: int) -> float:
    return float(rank(scores, truth) < 5)


PLUGIN = Hit(hit=_hit, classes=6)
