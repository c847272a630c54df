"""The samples that suffer most."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from qdqtool.accuracy.metric import Floats, energy
from qdqtool.core.comparison import SampleError

_KEPT: Final = 10
"""What somebody looks at by hand."""


@dataclass(frozen=True, slots=True)
class _Energies:
    """Which samples have an output, its energy and that of its error in each."""

    places: array[int] = field(default_factory=lambda: array("q"))
    signals: array[float] = field(default_factory=lambda: array("d"))
    noises: array[float] = field(default_factory=lambda: array("d"))


class Worst:
    """Finds the samples with the most noise in any output, each once: noise over their signal, or over the mean of all where they have less.

    A picture without objects has next to no scores, and the little noise of it would count more than lost objects.
    24 bytes are kept of each output of a sample, and its name.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._seen: dict[str, _Energies] = defaultdict(_Energies)

    def add(self, sample: str, pairs: dict[str, tuple[Floats, Floats]]) -> None:
        """Take in all outputs of one sample."""
        for output, (reference, candidate) in pairs.items():
            signal, noise = energy(reference), energy(candidate - reference)
            # values too large to be squared tell nothing
            if math.isfinite(signal) and math.isfinite(noise):
                kept = self._seen[output]
                kept.places.append(len(self._names))
                kept.signals.append(signal)
                kept.noises.append(noise)
        # The file's name is enough to find it, and does not depend on where the samples lie.
        self._names.append(sample.rpartition("/")[2])

    def listed(self) -> tuple[SampleError, ...]:
        """Worst first; earlier samples win a draw. Those without noise or signal are left out."""
        worst: dict[int, tuple[float, SampleError]] = {}
        for output, kept in self._seen.items():
            signal, noise = np.frombuffer(kept.signals), np.frombuffer(kept.noises)
            shares = noise / np.maximum(np.maximum(signal, signal.mean()), np.finfo(np.float64).tiny)
            for number in np.argsort(-shares, kind="stable"):
                place, share = kept.places[number], float(shares[number])
                if not (signal[number] and noise[number]) or share <= worst.get(place, (0.0,))[0]:
                    continue
                level = 10 * (math.log10(signal[number]) - math.log10(noise[number]))
                worst[place] = share, SampleError(sample=self._names[place], output=output, sqnr_db=level)
        ranked = sorted(worst.items(), key=lambda item: (-item[1][0], item[0]))
        return tuple(entry for _, (_, entry) in ranked[:_KEPT])
