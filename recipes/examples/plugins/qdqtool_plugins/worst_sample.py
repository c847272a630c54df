"""Largest relative error of any one sample: the norm of the difference over the norm of the reference.

A mean over all samples hides the one sample that is destroyed. In a recipe: `compare.metrics: [worst_sample]`.
"""

import math

from qdqtool.accuracy.metric import Distance, Floats, Reading, energy


class WorstSample:
    """Keeps one number."""

    def __init__(self) -> None:
        self._worst: float | None = None

    def add(self, reference: Floats, candidate: Floats) -> None:
        """One sample's pair of equal shape."""
        if norm := energy(reference):
            self._worst = max(self._worst or 0.0, math.sqrt(energy(candidate - reference) / norm))

    def reading(self) -> Reading:
        """The metric over what was seen so far; undefined where every reference was zero."""
        if self._worst is None:
            return Reading(value=None, note="the reference is zero in every sample")
        return Reading(value=self._worst)


PLUGIN = Distance(start=WorstSample, better="lower", perfect=0.0)
