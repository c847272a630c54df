"""The threshold that loses the least information, as TensorRT's EntropyCalibration2 chooses it.

For every threshold from the 128th bin on, two distributions are compared: the one clipped at the threshold (larger
values are added to the last bin), and the same bins merged into 128 levels and spread again over the non-empty bins.
The threshold with the smallest Kullback-Leibler divergence wins. Good for convolutional networks with ReLU; it clips
the rare large values that detector heads and attention need.

Source: S. Migacz, "8-bit Inference with TensorRT" (GTC 2017): 2048 bins, 128 levels, first candidate at 128 bins,
threshold = (bins kept + 0.5) * bin width. As in NVIDIA's pytorch-quantization the first bin, which mostly holds
the zeros that any scale represents exactly, is replaced by its neighbour; a candidate whose last kept bin is empty
while something was clipped has an infinite divergence; among equals the widest threshold wins.
`benchmarks/cache_scales.py` compares the result with a cache that TensorRT itself wrote.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrators.calibrator import Calibrator, Grid, Range
from calibrators.histogram import Histogram, coarsen
from calibrators.kernels import compile_loop
from calibrators.methods.max import largest

BINS: Final = 2048 + 1
"""Bins of the published method plus one, because a maximum that is a power of two begins a new bin."""
COARSE: Final = 16
"""Step between the candidates of the first pass."""
ROUNDING: Final = 1e-12
"""Divergences that differ by less are equal."""


def entropy(histogram: Histogram, grid: Grid) -> Range:
    """Return the KL threshold over 1025 to 2049 bins, at most the maximum.

    The bins are squeezed into the levels of an integer format. A float format has no such levels, and its smallest
    numbers lie closer than any bin: there nothing is clipped.
    """
    if not grid.is_even:
        return largest(histogram, grid)
    levels = grid.magnitudes.size
    counts, width = coarsen(histogram, BINS)
    if counts.size <= levels:
        return Range(amax=histogram.amax, method="entropy")
    counts = counts.copy()
    counts[0] = counts[1]
    kept = int(best_threshold(counts, levels))
    return Range(amax=min((kept + 0.5) * width, histogram.amax), method="entropy")


@compile_loop
def best_threshold(counts: NDArray[np.int64], levels: Any) -> Any:
    """Return how many bins to keep for the smallest divergence; all of them if no candidate has a finite divergence.

    A coarse pass over the candidates finds a divergence that is small already. Then all of them are tried, widest
    first, each given up as soon as it cannot win any more.
    """
    size = counts.size
    sums = np.zeros(size + 1)
    filled = np.zeros(size + 1)
    information = np.zeros(size + 1)
    for i in range(size):
        count = float(counts[i])
        sums[i + 1] = sums[i] + count
        filled[i + 1] = filled[i] + (1 if count > 0 else 0)
        information[i + 1] = information[i] + (count * math.log(count) if count > 0 else 0.0)
    least = np.inf
    for candidate in range(size, levels - 1, -COARSE):
        least = min(least, _divergence((sums, filled, information), candidate, levels, least))
    least += ROUNDING
    kept = size
    for candidate in range(size, levels - 1, -1):
        divergence = _divergence((sums, filled, information), candidate, levels, least)
        if divergence < least - ROUNDING / 2:
            least, kept = divergence, candidate
    return kept


@compile_loop
def _divergence(
    running: tuple[Any, Any, Any],
    candidate: Any,
    levels: Any,
    limit: Any,
) -> Any:
    """Return the divergence if `candidate` bins are kept; any number above `limit` if it exceeds `limit`.

    With P the clipped counts, S their sum, W_j the sum of those in level j, n_j the bins of it that are not empty, and
    A_j, A the same sums before the clipped counts were added,
        S KL = sum_j W_j log(W_j A / (S A_j))  +  sum_j (sum_i P_i log P_i  -  W_j log(W_j / n_j)).
    The first sum is the divergence between the levels, where only the last one differs; every term of the second is
    the divergence inside a level. None is negative, so what was added up so far is a lower bound.
    Sums over bins are differences of running totals: one step per level and candidate instead of one per bin.
    """
    sums, filled, information = running
    total, inside = sums[-1], sums[candidate]
    outside = total - inside
    last = inside - sums[candidate - 1]
    joined = last + outside
    if inside == 0 or (last == 0 and outside > 0):
        return np.inf
    start = ((levels - 1) * candidate + levels - 1) // levels
    mass = inside - sums[start]
    weight = mass + outside
    if mass > 0:
        divergence = (inside - mass) * math.log(inside / total) + weight * math.log(
            weight * inside / (total * mass)
        )
        divergence += information[candidate - 1] - information[start]
        divergence += joined * math.log(joined) if joined > 0 else 0.0
        divergence -= weight * math.log(weight / (filled[candidate] - filled[start]))
    else:
        divergence = 0.0
    limit *= total
    stop = start
    for level in range(levels - 2, -1, -1):
        if divergence > limit:
            break
        start = (level * candidate + levels - 1) // levels
        mass = sums[stop] - sums[start]
        if mass > 0:
            divergence += (
                information[stop]
                - information[start]
                - mass * math.log(mass / (filled[stop] - filled[start]))
            )
        stop = start
    return max(divergence, 0.0) / total


PLUGIN: Final = Calibrator(choose=entropy)
