"""Cosine similarity of all values of all samples, as one long vector; 1 means equal directions.

It hides a wrong overall factor and small errors; read it together with `sqnr_db`. Undefined when either side is zero
everywhere.
"""

from __future__ import annotations

import math

from qdqtool.accuracy.metric import SILENT, Distance, Floats, Reading, energy, inner


class Cosine:
    """Cosine similarity of an output over all samples. Stores the inner product and both squared norms."""

    def __init__(self) -> None:
        self._inner = 0.0
        self._reference = 0.0
        self._candidate = 0.0

    def add(self, reference: Floats, candidate: Floats) -> None:
        self._inner += inner(reference, candidate)
        self._reference += energy(reference)
        self._candidate += energy(candidate)

    def reading(self) -> Reading:
        if not self._reference:
            return Reading(value=None, note=SILENT)
        if not self._candidate:
            return Reading(value=None, note="the candidate is zero everywhere")
        value = self._inner / (math.sqrt(self._reference) * math.sqrt(self._candidate))
        return Reading(value=max(-1.0, min(1.0, value)))


PLUGIN = Distance(start=Cosine, better="higher", perfect=1.0)
