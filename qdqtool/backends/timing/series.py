"""Measured times of one candidate, and their statistics."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, median, pstdev

from qdqtool.errors import InputFileError

_UNSTABLE = 0.025
"""Coefficient of variation above which a measurement is called unstable, as in trtexec."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """Times of one candidate in milliseconds.

    Attributes:
        name: what was timed.
        clock: what was measured, in words ("GPU compute time by trtexec").
        rounds: times of each round, in the order of measurement; at least one time per round.
    """

    name: str
    clock: str
    rounds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.rounds or not all(self.rounds):
            raise InputFileError("a round without any time", fix="measure more iterations", where=self.name)

    @property
    def times(self) -> tuple[float, ...]:
        """Times of all rounds in one tuple."""
        return tuple(time for times in self.rounds for time in times)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesSummary:
    """Statistics of a series, times in milliseconds.

    Attributes:
        name: what was timed.
        clock: what was measured, in words.
        count: number of inferences.
        rounds: number of rounds.
        median, mean, low, high: of all times.
        p90, p95, p99: percentiles, the nearest time that is not smaller.
        spread: standard deviation over mean.
        unstable: whether the spread is above 2.5 %.
    """

    name: str
    clock: str
    count: int
    rounds: int
    median: float
    mean: float
    low: float
    high: float
    p90: float
    p95: float
    p99: float
    spread: float
    unstable: bool


def summarize(series: Series) -> SeriesSummary:
    """Compute the statistics of a series."""
    times = sorted(series.times)
    mean = fmean(times)
    spread = pstdev(times) / mean if mean else 0.0
    return SeriesSummary(
        name=series.name,
        clock=series.clock,
        count=len(times),
        rounds=len(series.rounds),
        median=median(times),
        mean=mean,
        low=times[0],
        high=times[-1],
        p90=_percentile(times, 90),
        p95=_percentile(times, 95),
        p99=_percentile(times, 99),
        spread=spread,
        unstable=spread > _UNSTABLE,
    )


def _percentile(rising: list[float], share: int) -> float:
    """Return the smallest time that at least `share` percent of all times do not exceed."""
    return rising[max(0, -(-len(rising) * share // 100) - 1)]
