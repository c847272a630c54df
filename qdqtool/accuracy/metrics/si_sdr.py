"""Scale-invariant signal-to-distortion ratio in decibel, for audio: mean over samples.

The mean of each sample is removed, and its volume does not count: the reference is scaled to fit the candidate best,
and the remaining difference is distortion (Le Roux, Wisdom, Erdogan, Hershey: SDR, half-baked or well done?, 2019).
Samples without signal or without distortion are skipped; undefined if no sample remains.
"""

from __future__ import annotations

import math

from qdqtool.accuracy.metric import Distance, Floats, Reading, energy, inner


class SiSdr:
    """Scale-invariant signal-to-distortion ratio (SI-SDR) of an output. Stores a sum and a count."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._samples = 0

    def add(self, reference: Floats, candidate: Floats) -> None:
        if not reference.size:
            return
        left, right = reference - reference.mean(), candidate - candidate.mean()
        power = energy(left)
        if not power:
            return
        target = left * (inner(left, right) / power)
        signal, distortion = energy(target), energy(right - target)
        if signal and distortion:
            self._sum += 10 * (math.log10(signal) - math.log10(distortion))
            self._samples += 1

    def reading(self) -> Reading:
        if not self._samples:
            return Reading(value=None, note="the outputs are equal, or the reference has no signal")
        return Reading(value=self._sum / self._samples)


PLUGIN = Distance(start=SiSdr, better="higher", unit="dB")
