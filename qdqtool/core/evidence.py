"""Is B better than A? One test for paired numbers, one per sample; lower numbers are better (noise, loss, time).

Both candidates ran the same samples, so their differences are compared (paired t-test, Student 1908): a hard sample is hard
for both. Student's t allows for few samples. If several candidates are compared, the best of them looks better than it is:
`candidates` divides the probability of a false alarm (Bonferroni), so that it holds for all of them together.

False alarms at 95 % confidence if both are equally good, for 2, 8, 32 and 256 samples (20,000 draws each):

    normal differences                           4.9,  4.6,  4.9, 5.2 %
    two log-normals of sigma 2                   2.2,  2.2,  3.6, 4.5 %
    Student's t with 2 degrees of freedom        4.0,  4.0,  4.5, 4.8 %
    a log-normal of sigma 1 less its mean       18.0, 21.7, 15.3, 8.9 %   (rare losses that few samples do not show)
    the same with the other sign                 1.3,  0.4,  1.1, 2.5 %

So the test is conservative for symmetric heavy tails. For rare large losses it has too many false alarms: use
`accuracy.intervals.largest_loss` and `largest_mean` for a bound on them. Differences in decibels are closer to normal
than differences of energies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

CONFIDENCE: Final = 0.95
"""Default confidence: one false alarm in twenty comparisons."""


def better(
    a: Sequence[float],
    b: Sequence[float],
    confidence: float = CONFIDENCE,
    candidates: int = 1,
) -> bool:
    """Return True if the mean of `a` is below the mean of `b`, with this confidence.

    `candidates` is how many comparisons are made, for all of which together the confidence holds. Fewer than two samples and
    numbers that are not finite show nothing.

    Raises:
        ValueError: different numbers of samples, or fewer than one candidate.
    """
    if candidates < 1:
        raise ValueError(f"{candidates} candidates: at least one is compared")
    return false_alarm(a, b) * candidates < 1 - confidence


def false_alarm(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the probability that samples show at least this gain of `a` over `b` if `a` is not better (one-sided).

    Equal differences on all samples have no spread to compare the gain with; there the sign test answers.

    Raises:
        ValueError: different numbers of samples.
    """
    gains = [noise_b - noise_a for noise_a, noise_b in zip(a, b, strict=True)]
    count = len(gains)
    mean = math.fsum(gains) / count if count and all(map(math.isfinite, gains)) else 0.0
    if count < 2 or not mean:
        return 1.0 if count < 2 else 0.5
    error = math.sqrt(math.fsum((gain - mean) ** 2 for gain in gains) / (count - 1) / count)
    if not error:
        return 0.5**count if mean > 0 else 1.0
    return student_tail(mean / error, count - 1)


def chance(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the probability that two equally good candidates differ at least this much, in either direction; 1 if unknown."""
    return min(1.0, 2 * min(false_alarm(a, b), false_alarm(b, a)))


def find_ties(numbers: Mapping[str, Sequence[float]], confidence: float = CONFIDENCE) -> dict[str, float]:
    """Return the candidates that are statistically tied with the best. The value of each is its `chance` against the best.

    The truly best one is among them with this confidence (multiple comparisons with the best, Hsu 1981): each other one
    is compared with the one that looks best. Candidates with numbers that are not finite are left out, unless all have such.
    """
    finite = {name: noises for name, noises in numbers.items() if all(map(math.isfinite, noises))} or numbers
    best = min(finite.values(), key=math.fsum)
    compared = max(1, len(finite) - 1)
    return {
        name: chance(noises, best)
        for name, noises in finite.items()
        if not better(best, noises, confidence=confidence, candidates=compared)
    }


def student_tail(t: float, freedom: int) -> float:
    """Return the probability that Student's t with `freedom` degrees of freedom exceeds `t`.

    Exact for whole degrees of freedom: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = cosine if freedom % 2 else 1.0
    series = 0.0 if freedom == 1 else term
    for step in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine**2 * (step - 1) / step
        series += term
    inside = 2 / math.pi * (angle + sine * series) if freedom % 2 else sine * series
    return min(1.0, max(0.0, (1 - inside) / 2))


@lru_cache(maxsize=256)
def student_quantile(freedom: int, level: float) -> float:
    """Return the value that Student's t with `freedom` degrees of freedom exceeds with probability 1 - `level`."""
    low, high = -math.pi / 2, math.pi / 2
    root = math.sqrt(freedom)
    for _ in range(60):
        middle = (low + high) / 2
        if student_tail(root * math.tan(middle), freedom) > 1 - level:
            low = middle
        else:
            high = middle
    return root * math.tan(low)
