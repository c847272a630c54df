"""Mean absolute difference over all values of all samples, in the unit of the output."""

from __future__ import annotations

from qdqtool.accuracy.metric import NOTHING_SEEN, Distance, Floats, Reading


class MeanAbs:
    """Mean absolute difference of an output over all samples. Stores a sum and a count."""

    def __init__(self) -> None:
        self._error = 0.0
        self._values = 0

    def add(self, reference: Floats, candidate: Floats) -> None:
        self._error += float(abs(candidate - reference).sum())
        self._values += reference.size

    def reading(self) -> Reading:
        return Reading(value=self._error / self._values) if self._values else NOTHING_SEEN


PLUGIN = Distance(start=MeanAbs, better="lower", perfect=0.0)
