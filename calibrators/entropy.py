"""The threshold that loses least information, as TensorRT's EntropyCalibration2 does it.

For every threshold from the 128th bin on, the distribution clipped there (what lies above is added to the last bin
that is kept) is compared with the same bins squeezed into 128 levels and spread out again over the bins that were
not empty; the threshold with the smallest Kullback-Leibler divergence wins. Good for convolutional networks with
ReLU; clips the rare large values that detector heads and attention live on.

Source: S. Migacz, "8-bit Inference with TensorRT" (GTC 2017): 2048 bins, 128 levels, first candidate at 128 bins,
threshold = (bins kept + 0.5) * bin width. As in NVIDIA's pytorch-quantization the first bin, which mostly holds
the zeros that any scale represents exactly, is replaced by its neighbour; a candidate whose last kept bin is empty
while something was clipped has an infinite divergence; among equals the widest threshold wins.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrators.compiled import compiled
from calibrators.histogram import Histogram, coarsened
from calibrators.ranges import Range

BINS: Final = 2048 + 1
"""One more than published, because a maximum that is a power of two begins a bin of its own."""
LEVELS: Final = 128


def entropy(histogram: Histogram) -> Range:
    """The KL threshold over 1025 to 2049 bins, at most the maximum."""
    counts, width = coarsened(histogram, BINS)
    if counts.size <= LEVELS:
        return Range(amax=histogram.amax, method="entropy")
    counts = counts.copy()
    counts[0] = counts[1]
    kept = int(best_threshold(counts))
    return Range(amax=min((kept + 0.5) * width, histogram.amax), method="entropy")


@compiled
def best_threshold(counts: NDArray[np.int64]) -> Any:
    """How many bins to keep so that the divergence is smallest; all of them when no candidate has a finite one.

    With P the clipped counts, n_j the bins of level j that are not empty, A_j their sum and S, Q the two totals,
        KL = (sum P log P  -  sum_j P_j log(A_j / n_j)) / S  -  log S  +  log Q,
    and every sum over bins is a difference of running totals: 128 steps per candidate instead of one per bin.
    """
    size = counts.size
    sums = np.zeros(size + 1)
    filled = np.zeros(size + 1, np.int64)
    self_information = np.zeros(size + 1)
    for i in range(size):
        count = float(counts[i])
        sums[i + 1] = sums[i] + count
        filled[i + 1] = filled[i] + (1 if count > 0 else 0)
        self_information[i + 1] = self_information[i] + (count * math.log(count) if count > 0 else 0.0)
    total = sums[size]
    best, kept = np.inf, size
    for candidate in range(LEVELS, size + 1):
        inside = sums[candidate]
        outside = total - inside
        last = float(counts[candidate - 1])
        if inside == 0 or (last == 0 and outside > 0):
            continue
        folded = last + outside
        information = self_information[candidate - 1] + (folded * math.log(folded) if folded > 0 else 0.0)
        cross = 0.0
        start = 0
        for level in range(LEVELS):
            stop = ((level + 1) * candidate + LEVELS - 1) // LEVELS
            mass = sums[stop] - sums[start]
            if mass > 0:
                weight = mass + outside if level == LEVELS - 1 else mass
                cross += weight * math.log(mass / (filled[stop] - filled[start]))
            start = stop
        divergence = (information - cross) / total - math.log(total) + math.log(inside)
        if divergence <= best:
            best, kept = divergence, candidate
    return kept


PLUGIN: Final = entropy
