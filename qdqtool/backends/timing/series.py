"""Measured times of several candidates in rounds, and the comparison of two of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, median, pstdev, stdev
from typing import Literal, Protocol

from qdqtool.core.evidence import student_quantile
from qdqtool.errors import InputFileError, UsageError

_UNSTABLE = 0.025
"""Coefficient of variation above which a measurement is called unstable, as in trtexec."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The measured times of one model or engine, in milliseconds, by round.

    Attributes:
        name: the timed model or engine.
        clock: the measured time, in words ("GPU compute time by trtexec").
        rounds: times of each round, in the order of measurement; at least one time per round.
    """

    name: str
    clock: str
    rounds: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.rounds or not all(self.rounds):
            raise InputFileError(
                "a round of measurements has no times", fix="measure more iterations", where=self.name
            )

    @property
    def times(self) -> tuple[float, ...]:
        """The times of all rounds in one tuple."""
        return tuple(time for times in self.rounds for time in times)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesSummary:
    """Statistics of one model's measured times, in milliseconds.

    Attributes:
        name: the timed model or engine.
        clock: the measured time, in words.
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
    """Compute median, mean and spread of the times of one model."""
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
    """Return the smallest measured time that at least `share` percent of the times do not exceed."""
    return rising[max(0, -(-len(rising) * share // 100) - 1)]


# --- rounds ----------------------------------------------------------------------------------------------------------
# Measures candidates in alternating order (A B, then B A), so that neither always runs on a warmer machine.


class Clock(Protocol):
    """A model or engine that can be run and timed."""

    @property
    def name(self) -> str:
        """Name of the timed model or engine."""

    @property
    def measures(self) -> str:
        """Description of the time that the clock measures."""

    def warm_up(self, milliseconds: float) -> None:
        """Run the model or engine for about `milliseconds` without measuring."""

    def measure(self, iterations: int) -> tuple[float, ...]:
        """Measure the milliseconds of each of `iterations` inferences."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effort:
    """Number of rounds and inferences of a time measurement, and its warm-up.

    Attributes:
        rounds: how often each candidate has its turn.
        iterations: inferences per turn.
        warm_up_ms: running without measuring before the first turn, in milliseconds.
    """

    rounds: int = 10
    iterations: int = 100
    warm_up_ms: float = 200.0


OnTurn = Callable[[int, int], None]
"""Function that is called after each turn with the turns done and the total."""


def spell_file(name: str) -> str:
    """Return the name of a candidate as part of a file name, without characters that Windows refuses."""
    return re.sub(r'[<>:"/\\|?*]', "_", name)


def distinct_names(paths: Sequence[Path]) -> tuple[str, ...]:
    """Return the file name of each path, with as many folders as tell equal names apart; equal paths are numbered."""
    names, depth = [path.name for path in paths], 1
    while len(set(names)) < len(set(paths)):
        depth += 1
        names = [
            "/".join(path.parts[-depth:]) if names.count(name) > 1 else name
            for path, name in zip(paths, names, strict=True)
        ]
    return tuple(
        f"{name} ({names[:place].count(name) + 1})" if names.count(name) > 1 else name
        for place, name in enumerate(names)
    )


def take_turns(clocks: Sequence[Clock], effort: Effort, on_turn: OnTurn | None = None) -> tuple[Series, ...]:
    """Measure every clock in every round; return one series per clock, in the given order."""
    for clock in clocks:
        clock.warm_up(effort.warm_up_ms)
    times: list[list[tuple[float, ...]]] = [[] for _ in clocks]
    total = effort.rounds * len(clocks)
    done = 0
    for number in range(effort.rounds):
        order = range(len(clocks)) if number % 2 == 0 else reversed(range(len(clocks)))
        for index in order:
            times[index].append(clocks[index].measure(effort.iterations))
            done += 1
            if on_turn is not None:
                on_turn(done, total)
    return tuple(
        Series(name=clock.name, clock=clock.measures, rounds=tuple(rounds))
        for clock, rounds in zip(clocks, times, strict=True)
    )


# --- faster ----------------------------------------------------------------------------------------------------------
# Compares two measured candidates: is B faster than A, by how much, and how certain is the result?
#
# Both were measured in the same rounds, directly one after the other. So each round gives one ratio of medians, which
# slow drift (heat, clocks) hardly changes. The speed-up is the geometric mean of these ratios; its 95 % interval is
# Student's for the mean of their logarithms. About one in twenty comparisons of two equally fast candidates reports a
# difference.


Answer = Literal["faster", "slower", "no difference shown", "bound by launches"]
_FEWEST = 5
"""Smallest number of rounds for an interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimingVerdict:
    """The result of comparing the times of B with those of A.

    Attributes:
        reference: name of A.
        candidate: name of B.
        speedup: A's time over B's: above 1, B is faster.
        low, high: bounds of the 95 % interval of the speed-up; None with fewer than five rounds.
        answer: "faster", "slower", or "no difference shown" when the interval holds 1 or there is none; "bound by launches"
            if for one of the two, the CPU takes longer to launch the kernels than the GPU to run them.
    """

    reference: str
    candidate: str
    speedup: float
    low: float | None
    high: float | None
    answer: Answer

    def __str__(self) -> str:
        sure = (
            "too few rounds for an interval"
            if self.low is None
            else f"95 %: {self.low:.3f} to {self.high:.3f}"
        )
        if self.answer == "bound by launches":
            words = f"kernel launches are the bottleneck, so the times of {self.candidate} and {self.reference} do not compare their kernels: speed-up"
        elif self.answer == "no difference shown":
            words = f"no difference shown between {self.candidate} and {self.reference}: speed-up"
        else:
            words = f"{self.candidate} is {self.answer} than {self.reference}: speed-up"
        return f"{words} {self.speedup:.3f} ({sure})"


def judge(reference: Series, candidate: Series) -> TimingVerdict:
    """Compare two series of times measured in the same rounds.

    Raises:
        UsageError: different numbers of rounds, or a time that is not positive.
    """
    if len(reference.rounds) != len(candidate.rounds):
        raise UsageError(
            "reference and candidate were timed in different numbers of rounds",
            fix="measure both in one call",
        )
    pairs = [(median(a), median(b)) for a, b in zip(reference.rounds, candidate.rounds, strict=True)]
    if any(value <= 0 for pair in pairs for value in pair):
        raise UsageError("a time is zero or negative", fix="measure again")
    ratios = [log(a / b) for a, b in pairs]
    middle = fmean(ratios)
    low = high = None
    if len(ratios) >= _FEWEST:
        half = student_quantile(len(ratios) - 1, 0.975) * stdev(ratios) / sqrt(len(ratios))
        low, high = exp(middle - half), exp(middle + half)
    return TimingVerdict(
        reference=reference.name,
        candidate=candidate.name,
        speedup=exp(middle),
        low=low,
        high=high,
        answer=_answer(low, high),
    )


def _answer(low: float | None, high: float | None) -> Answer:
    if low is not None and low > 1:
        return "faster"
    if high is not None and high < 1:
        return "slower"
    return "no difference shown"
