"""Largest absolute difference of any value in any sample, in the unit of the output."""

from __future__ import annotations

from qdqtool.accuracy.metric import NOTHING_SEEN, Distance, Floats, Reading


class MaxAbs:
    """Largest absolute difference of an output over all samples. Stores one number."""

    def __init__(self) -> None:
        self._largest: float | None = None

    def add(self, reference: Floats, candidate: Floats) -> None:
        if reference.size:
            self._largest = max(self._largest or 0.0, float(abs(candidate - reference).max()))

    def reading(self) -> Reading:
        return NOTHING_SEEN if self._largest is None else Reading(value=self._largest)


PLUGIN = Distance(start=MaxAbs, better="lower", perfect=0.0)
