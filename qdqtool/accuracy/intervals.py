"""Confidence intervals for the difference of two means on the same samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# The error of a 2.5 % quantile of so many draws is below one percent of the interval.
_DRAWS = 10_000
# Ratios of sums cost more to draw, and decibels are told with one digit.
_RATIO_DRAWS = 2_000
_LEVEL = 0.95
# Fixed: the same figures give the same interval.
_SEED = 20250
_CELLS = 1 << 22
"""Random numbers held at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Low and high end of a 95 % confidence interval."""

    low: float
    high: float


def ratio_interval(
    signal: np.ndarray[tuple[int], np.dtype[np.float64]], noise: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> Interval | None:
    """95 % interval of 10 log10(sum signal / sum noise) in dB over samples; None for fewer than two samples.

    The same bootstrap: samples are drawn with replacement, each with its signal and its noise. Draws without any noise
    have no ratio and count as the largest that was drawn.
    """
    count = len(signal)
    if count < 2 or not noise.sum() or not signal.sum():
        return None
    rng = np.random.default_rng(_SEED)
    batch = max(1, _CELLS // count)
    sums = []
    for start in range(0, _RATIO_DRAWS, batch):
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=min(batch, _RATIO_DRAWS - start))
        sums.append(np.stack([drawn @ signal, drawn @ noise]))
    above, below = np.concatenate(sums, axis=1)
    known = (above > 0) & (below > 0)
    decibels = 10 * np.log10(above[known] / below[known])
    decibels = np.concatenate([decibels, np.full(int((~known).sum()), decibels.max(initial=-np.inf))])
    low, high = np.quantile(decibels, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(low=float(low), high=float(high))


def paired_interval(differences: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Interval | None:
    """95 % interval of the mean of per-sample differences; None for fewer than two samples.

    A percentile bootstrap with a fixed seed: samples are drawn with replacement as pairs, so that what both models
    find hard cancels (Efron and Tibshirani, An Introduction to the Bootstrap, 1993). Equal differences are drawn
    together, which makes the cost depend on the number of different values only. Where all samples show the same
    difference the bootstrap would claim certainty; there the interval is what n equal samples can exclude,
    1 - 0.05^(1/n) both ways (for differences between -1 and 1).
    """
    count = len(differences)
    if count < 2:
        return None
    values, times = np.unique(differences, return_counts=True)
    if len(values) == 1:
        only, reach = float(values[0]), 1 - (1 - _LEVEL) ** (1 / count)
        return Interval(low=max(-1.0, only - reach), high=min(1.0, only + reach))
    rng = np.random.default_rng(_SEED)
    batch = max(1, _CELLS // len(values))
    means = [
        rng.multinomial(count, times / count, size=min(batch, _DRAWS - start)) @ values / count
        for start in range(0, _DRAWS, batch)
    ]
    low, high = np.quantile(np.concatenate(means), [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(low=float(low), high=float(high))


def skewed_mean_interval(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Interval | None:
    """95 % interval of the mean of positive values that spread over decades, such as the noise of a few samples.

    Cox's method for log-normal values (Zhou and Gao, "Confidence intervals for the log-normal mean", Statistics in
    Medicine 16, 1997), with Student's t: a bootstrap of four samples never sees the fifth that is ten times as loud.
    None for fewer than two samples, or where a value is not positive.
    """
    count = len(values)
    if count < 2 or not (values > 0).all():
        return None
    logs = np.log(values)
    variance = float(logs.var(ddof=1))
    middle = float(logs.mean()) + variance / 2
    reach = _student(count - 1) * math.sqrt(variance / count + variance**2 / (2 * (count - 1)))
    mean = float(values.mean())
    return Interval(
        low=min(mean, math.exp(middle - reach)), high=max(mean, math.exp(min(middle + reach, 700.0)))
    )


def _student(freedom: int) -> float:
    """The 97.5 % point of Student's t: exact for 1 and 2 degrees, else Cornish and Fisher's expansion, within 1 %."""
    if freedom == 1:
        return 12.706
    if freedom == 2:
        return 4.303
    z = 1.959964
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3
