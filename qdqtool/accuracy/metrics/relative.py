"""Relative error in percent: 100 * sum |candidate - reference| / sum |reference|.

Sums before it divides, so values near zero do not inflate it, unlike an elementwise relative error. Undefined when the
reference is zero everywhere.
"""

from __future__ import annotations

from qdqtool.accuracy.metric import SILENT, Distance, Floats, Reading


class Relative:
    """Difference of an output relative to its magnitude. Stores two sums of magnitudes."""

    def __init__(self) -> None:
        self._error = 0.0
        self._signal = 0.0

    def add(self, reference: Floats, candidate: Floats) -> None:
        self._error += float(abs(candidate - reference).sum())
        self._signal += float(abs(reference).sum())

    def reading(self) -> Reading:
        if not self._signal:
            return Reading(value=None, note=SILENT)
        return Reading(value=100 * self._error / self._signal)


PLUGIN = Distance(start=Relative, better="lower", unit="%", perfect=0.0)
