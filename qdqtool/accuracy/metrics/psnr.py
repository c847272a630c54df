"""Peak signal to noise in decibel, for images: 10 log10(range^2 / mean squared error).

The range is the reference's own, largest minus smallest value over all samples, so images in 0..1 and in 0..255 give
the same figure. Undefined when there is no error, or when the reference is constant.
"""

from __future__ import annotations

import math

from qdqtool.accuracy.metric import NOTHING_SEEN, SAME, Distance, Floats, Reading, energy


class Psnr:
    """Peak signal-to-noise ratio (PSNR) of an output. Stores the squared error, a count, and the reference's extremes."""

    def __init__(self) -> None:
        self._noise = 0.0
        self._values = 0
        self._low = math.inf
        self._high = -math.inf

    def add(self, reference: Floats, candidate: Floats) -> None:
        if not reference.size:
            return
        self._noise += energy(candidate - reference)
        self._values += reference.size
        self._low = min(self._low, float(reference.min()))
        self._high = max(self._high, float(reference.max()))

    def reading(self) -> Reading:
        if not self._values:
            return NOTHING_SEEN
        if not self._noise:
            return Reading(value=None, note=SAME)
        if self._high <= self._low:
            return Reading(value=None, note="all values of the reference are equal")
        error = math.log10(self._noise) - math.log10(self._values)
        return Reading(value=20 * math.log10(self._high - self._low) - 10 * error)


PLUGIN = Distance(start=Psnr, better="higher", unit="dB")
