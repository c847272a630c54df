"""Signal to quantization noise in decibel: 10 log10(sum reference^2 / sum (candidate - reference)^2).

Summed over all values of all samples. Every 6 dB is one bit of precision. 30 dB and more is usual for the scores of a
well calibrated INT8 network; below 15 dB something is wrong. Undefined without noise or signal.
"""

from __future__ import annotations

import math

from qdqtool.accuracy.metric import SAME, SILENT, Distance, Floats, Reading, energy


class Sqnr:
    """Signal-to-quantization-noise ratio (SQNR) of an output. Stores the energy of signal and noise."""

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0

    def add(self, reference: Floats, candidate: Floats) -> None:
        self._signal += energy(reference)
        self._noise += energy(candidate - reference)

    def reading(self) -> Reading:
        if not self._noise:
            return Reading(value=None, note=SAME)
        if not self._signal:
            return Reading(value=None, note=SILENT)
        return Reading(value=10 * (math.log10(self._signal) - math.log10(self._noise)))


PLUGIN = Distance(start=Sqnr, better="higher", unit="dB")
