"""Share of samples whose best class is the label, in percent.

If several classes share the best score, the first of them counts, as with argmax.
"""

from __future__ import annotations

from qdqtool.accuracy.metric import Floats, Hit
from qdqtool.accuracy.task import rank


def _hit(scores: Floats, truth: int) -> float:
    return float(rank(scores, truth) == 0)


PLUGIN = Hit(hit=_hit)
