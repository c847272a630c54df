"""Statistical tests and confidence intervals that compare two candidates by one number per sample; lower is better (noise, loss, time).

Both candidates ran equal samples, so their differences are compared (paired t-test, Student 1908): a hard sample is
hard for both. Student's t allows for few samples. If several candidates are compared, the best candidate looks better
than it is. `candidates` divides the probability of a false alarm by their number (Bonferroni), so that the confidence
applies to all comparisons together.

False alarms at 95 % confidence if both are equally good, for 2, 8, 32 and 256 samples (20,000 draws each):

    normal differences                           4.9,  4.6,  4.9, 5.2 %
    two log-normals of sigma 2                   2.2,  2.2,  3.6, 4.5 %
    Student's t with 2 degrees of freedom        4.0,  4.0,  4.5, 4.8 %
    a log-normal of sigma 1 less its mean       18.0, 21.7, 15.3, 8.9 %   (rare losses that few samples do not show)
    the same with the other sign                 1.3,  0.4,  1.1, 2.5 %

So the test is conservative for symmetric heavy tails. For rare large losses it has too many false alarms: use
`largest_loss` and `largest_mean` for a bound on them. Differences of the fourth roots of energies are closer to normal than
differences of energies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np

from qdqtool.core.sensitivity import Cure

CONFIDENCE: Final = 0.95
"""Default confidence: one false alarm in twenty comparisons."""


def better(
    a: Sequence[float],
    b: Sequence[float],
    confidence: float = CONFIDENCE,
    candidates: int = 1,
) -> bool:
    """Return True if the mean of `a` is below the mean of `b` with this confidence.

    `candidates` is how many comparisons are made, for all of which together the confidence holds. Fewer than two
    samples, and infinite or NaN numbers, show nothing.

    Raises:
        ValueError: different numbers of samples, or fewer than one candidate.
    """
    if candidates < 1:
        raise ValueError(f"{candidates} candidates: at least one is compared")
    return false_alarm(a, b) * candidates < 1 - confidence


def false_alarm(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the probability that samples show at least this gain of `a` over `b` although `a` is not better (one-sided).

    If the differences are equal on all samples, they have no spread; then the sign test decides.

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


def false_alarm_of_choice(
    chosen: int, candidates: Sequence[Sequence[float]], before: Sequence[float]
) -> float:
    """Return the probability that the best of several candidates shows at least this gain over `before` although none is better.

    For each draw, the gains on randomly chosen samples change their sign, for all candidates together. The largest
    Student's t of a draw is compared with that of candidate number `chosen` (Westfall and Young, Resampling-Based
    Multiple Testing, 1993). Candidates that gain on equal samples count as one comparison, where Bonferroni's correction
    counts all of them.
    """
    gains = np.subtract(before, candidates)
    if gains.shape[1] < 2 or not np.isfinite(gains).all():
        return 1.0
    signs = np.random.default_rng(_SEED).choice([-1.0, 1.0], (_RATIO_DRAWS, gains.shape[1]))
    sums = np.vstack([gains.sum(1), signs @ gains.T])
    spread = (gains**2).sum(1) - sums**2 / gains.shape[1]
    scores = sums / np.sqrt(np.maximum(spread, np.finfo(np.float64).tiny))
    return float((scores.max(1) >= scores[0, chosen] * (1 - 1e-9)).sum()) / (1 + _RATIO_DRAWS)


def chance(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the probability that two equally good candidates differ by at least this much in any direction; 1 if unknown."""
    return min(1.0, 2 * min(false_alarm(a, b), false_alarm(b, a)))


def find_ties(numbers: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return the candidates that are statistically tied with the best, each with its p-value (`chance`).

    The truly best candidate is in the result with a confidence of `CONFIDENCE` (multiple comparisons with the best, Hsu 1981):
    every candidate is compared with the candidate that looks best. Candidates with infinite or NaN numbers are left
    out, unless all candidates have such numbers.
    """
    finite = {name: noises for name, noises in numbers.items() if all(map(math.isfinite, noises))} or numbers
    best = min(finite.values(), key=math.fsum)
    compared = max(1, len(finite) - 1)
    return {
        name: chance(noises, best)
        for name, noises in finite.items()
        if not better(best, noises, candidates=compared)
    }


def student_tail(t: float, freedom: int) -> float:
    """Return the probability that a value of Student's t distribution with `freedom` degrees of freedom exceeds `t`.

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
    """Return the quantile `level` of Student's t distribution with `freedom` degrees of freedom."""
    low, high = -math.pi / 2, math.pi / 2
    root = math.sqrt(freedom)
    for _ in range(60):
        middle = (low + high) / 2
        if student_tail(root * math.tan(middle), freedom) > 1 - level:
            low = middle
        else:
            high = middle
    return root * math.tan(low)


# --- intervals -------------------------------------------------------------------------------------------------------

# The error of a 2.5 % quantile of so many draws is below one percent of the interval.
_DRAWS = 10_000
# Ratios of sums are slower to draw, and decibels are shown with one digit.
_RATIO_DRAWS = 2_000
_LEVEL = 0.95
# Fixed seed: equal figures give equal intervals.
_SEED = 20250
_CELLS = 1 << 22
"""Most random numbers in memory at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """Lower and upper end of a 95 % confidence interval."""

    low: float
    high: float


def ratio_interval(
    signal: np.ndarray[tuple[int], np.dtype[np.float64]], noise: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> Interval | None:
    """Return the 95 % interval of 10 log10(sum signal / sum noise) in dB over samples; None for fewer than two samples.

    The interval is a bootstrap: samples are drawn with replacement, each with its signal and its noise. Draws without
    any noise have no ratio, and count as the largest ratio that was drawn. Draws with noise but no signal count as the
    smallest.
    """
    if len(signal) < 2 or not noise.sum() or not signal.sum():
        return None
    above, below = _drawn_sums(signal, noise)
    is_finite = (above > 0) & (below > 0)
    finite = 10 * np.log10(above[is_finite] / below[is_finite])
    decibels = np.where(below > 0, finite.min(initial=np.inf), finite.max(initial=-np.inf))
    decibels[is_finite] = finite
    return _middle(decibels)


def weighted_interval(
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
    weights: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> Interval | None:
    """Return the 95 % bootstrap interval of the weighted mean of one value per sample; None if all values are equal."""
    if len(np.unique(values)) < 2:
        return None
    above, below = _drawn_sums(weights * values, weights)
    return _middle(above / below)


def _drawn_sums(
    first: np.ndarray[tuple[int], np.dtype[np.float64]], second: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Return both sums over samples drawn with replacement: (2, draws)."""
    count = len(first)
    rng = np.random.default_rng(_SEED)
    batch = max(1, _CELLS // count)
    sums = []
    for start in range(0, _RATIO_DRAWS, batch):
        drawn = rng.multinomial(count, np.full(count, 1 / count), size=min(batch, _RATIO_DRAWS - start))
        sums.append(np.stack([drawn @ first, drawn @ second]))
    return np.concatenate(sums, axis=1)


def _middle(draws: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Interval:
    """Return the range that holds the middle 95 % of the draws."""
    low, high = np.quantile(draws, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return Interval(low=float(low), high=float(high))


def paired_interval(differences: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Interval | None:
    """Return the 95 % interval of the mean of per-sample differences; None for fewer than two samples.

    The method is a percentile bootstrap with a fixed seed. Samples are drawn with replacement as pairs, so that
    samples that are hard for both models cancel (Efron and Tibshirani, An Introduction to the Bootstrap, 1993). Equal
    differences are drawn together, so the time depends only on the number of different values. If all samples show an
    equal difference, the bootstrap would return a single point. The interval is then the range that n equal samples
    cannot exclude, 1 - 0.05^(1/n) in both directions (for differences between -1 and 1).
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
    """Return the 95 % interval of the mean of positive values that differ by powers of ten, such as the noise of few samples.

    Cox's method for log-normal values (Zhou and Gao, "Confidence intervals for the log-normal mean", Statistics in
    Medicine 16, 1997), with Student's t: a bootstrap of four samples cannot contain a fifth with ten times the noise.
    None for fewer than two samples, or if a value is not positive.
    """
    count = len(values)
    if count < 2 or not (values > 0).all():
        return None
    logs = np.log(values)
    variance = float(logs.var(ddof=1))
    middle = float(logs.mean()) + variance / 2
    reach = student_quantile(count - 1, (1 + _LEVEL) / 2) * math.sqrt(
        variance / count + variance**2 / (2 * (count - 1))
    )
    mean = float(values.mean())
    return Interval(
        low=min(mean, math.exp(middle - reach)), high=max(mean, math.exp(min(middle + reach, 700.0)))
    )


def largest_mean(values: np.ndarray[tuple[int], np.dtype[np.float64]], confidence: float) -> float | None:
    """Return the upper bound of the mean of positive values that differ by powers of ten, with this confidence (0 to 1); None for fewer than two values.

    The bound is one-sided, and the larger of two bounds. The first is Cox's method, as in `skewed_mean_interval`, for
    few positive values. The second is the bootstrap of Student's t (Efron and Tibshirani, chapter 12.5). A draw
    without the largest values has a low mean and a low spread, which raises the upper end if few values hold most of
    the sum. Measured on a ViT whose ten noisiest of 1500 samples hold a third of the noise: with bounds from 200
    samples, the other samples stayed below the first bound in 44 % of the draws, and below the larger of both in
    about 70 %.
    """
    count = len(values)
    if count < 2:
        return None
    mean, spread = float(values.mean()), float(values.std(ddof=1))
    if not spread:
        return mean
    rng = np.random.default_rng(_SEED)
    batch = max(1, _CELLS // count)
    scores = []
    for start in range(0, _RATIO_DRAWS, batch):
        drawn = (
            rng.multinomial(count, np.full(count, 1 / count), size=min(batch, _RATIO_DRAWS - start)) / count
        )
        means = drawn @ values
        variances = np.maximum(drawn @ values**2 - means**2, (1e-6 * spread) ** 2) * count / (count - 1)
        scores.append((means - mean) / np.sqrt(variances))
    reach = max(0.0, -float(np.quantile(np.concatenate(scores), 1 - confidence)))
    # draws without the single loud value have almost no spread: this value shows no more than one event of a Poisson
    # process
    reach = min(reach, (1 + NormalDist().inv_cdf(confidence) * math.sqrt(2)) / math.sqrt(count))
    return max(mean + reach * spread, _largest_lognormal_mean(values, confidence))


def _largest_lognormal_mean(values: np.ndarray[tuple[int], np.dtype[np.float64]], confidence: float) -> float:
    if not (values > 0).all():
        return float(values.mean())
    logs = np.log(values)
    count, variance = len(values), float(logs.var(ddof=1))
    spread = math.sqrt(variance / count + variance**2 / (2 * (count - 1)))
    return math.exp(
        min(float(logs.mean()) + variance / 2 + student_quantile(count - 1, confidence) * spread, 700.0)
    )


def largest_loss(losses: np.ndarray[tuple[int], np.dtype[np.float64]], confidence: float) -> float:
    """Return an upper bound of the mean loss with this confidence (0 to 1). Each loss is from -1 to 1.

    One-sided: (sum + 1 + z sqrt(sum of squares + 1)) / samples. This is the normal approximation of the interval of
    Clopper and Pearson with one lost sample added. Without the added sample, samples without any loss would prove
    that no sample is ever lost.
    """
    return largest_loss_of(float(losses.sum()), float((losses**2).sum()), len(losses), confidence)


def largest_loss_of(total: float, squares: float, count: int, confidence: float) -> float:
    """Return the bound of `largest_loss` from the sum, the sum of squares and the count of the losses."""
    z = NormalDist().inv_cdf(confidence)
    return (total + 1 + z * math.sqrt(squares + 1)) / max(1, count)


# --- gains of a change -----------------------------------------------------------------------------------------------
# The gain of a change at the outputs, with its uncertainty over samples.


def record_gain(
    correction: str, settings: tuple[str, ...], before: Sequence[float], after: Sequence[float]
) -> Cure:
    """Return a change with its gain in dB.

    `before` and `after` are the noise of each sample without and with the change. Without noise before, there is no gain.
    """
    old, new = math.fsum(before), math.fsum(after)
    if not new or not old:
        return Cure(
            what=correction,
            settings=settings,
            gain_db=None if old else 0.0,
            gain_low=None,
            gain_high=None,
            samples=len(after),
        )
    ends = ratio_interval(np.array(before, np.float64), np.array(after, np.float64))
    return Cure(
        what=correction,
        settings=settings,
        gain_db=10 * math.log10(old / new),
        gain_low=None if ends is None else ends.low,
        gain_high=None if ends is None else ends.high,
        samples=len(after),
    )
