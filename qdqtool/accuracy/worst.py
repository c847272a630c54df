"""The samples that suffer most."""

from __future__ import annotations

import heapq
import math

from qdqtool.accuracy.metric import Floats, energy
from qdqtool.core.comparison import SampleError

# What somebody looks at by hand.
_KEPT = 10


class Worst:
    """Keeps the samples with the lowest SQNR in any output, each once."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, SampleError]] = []
        self._order = 0

    def add(self, sample: str, pairs: dict[str, tuple[Floats, Floats]]) -> None:
        """Take in all outputs of one sample."""
        levels = {output: level for output, pair in pairs.items() if (level := _sqnr(*pair)) is not None}
        if not levels:
            return
        output = min(levels, key=lambda name: levels[name])
        self._order += 1
        # The file's name is enough to find it, and does not depend on where the samples lie.
        entry = SampleError(sample=sample.rpartition("/")[2], output=output, sqnr_db=levels[output])
        # The heap's smallest entry is the best of the worst; earlier samples win a draw.
        heapq.heappush(self._heap, (-levels[output], -self._order, entry))
        if len(self._heap) > _KEPT:
            heapq.heappop(self._heap)

    def listed(self) -> tuple[SampleError, ...]:
        """Worst first."""
        return tuple(entry for _, _, entry in sorted(self._heap, key=lambda item: item[:2], reverse=True))


def _sqnr(reference: Floats, candidate: Floats) -> float | None:
    """dB, or None where the sample shows no error, no signal, or values too large to be squared."""
    signal, noise = energy(reference), energy(candidate - reference)
    if not signal or not noise or math.isinf(noise):
        return None
    return 10 * (math.log10(signal) - math.log10(noise))
