"""Share of samples for which the candidate names the same best class as the reference, in percent. Needs no labels."""

from __future__ import annotations

from qdqtool.accuracy.metric import Floats, Hit
from qdqtool.accuracy.task import rank


def _hit(scores: Floats, truth: int) -> float:
    return float(rank(scores, truth) == 0)


PLUGIN = Hit(hit=_hit, truth="reference")
