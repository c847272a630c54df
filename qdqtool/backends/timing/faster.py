"""Compares two measured candidates: is B faster than A, by how much, and how certain is the result?

Both were measured in the same rounds, one right after the other, so each round gives one ratio of medians that slow
drift (heat, clocks) hardly touches. The speed-up is the geometric mean of these ratios; its 95 % interval is Student's
for the mean of their logarithms. Two candidates of equal speed are called different about once in twenty times.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import fmean, median, stdev
from typing import Literal

from qdqtool.backends.timing.series import Series
from qdqtool.core.evidence import student_quantile
from qdqtool.errors import UsageError

_FEWEST = 5
"""Smallest number of rounds for an interval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimingVerdict:
    """Result of comparing candidate B with reference A.

    Attributes:
        reference: name of A.
        candidate: name of B.
        speedup: A's time over B's: above 1, B is faster.
        low, high: bounds of the 95 % interval of the speed-up; None with fewer than five rounds.
        answer: "faster", "slower", or "no difference shown" when the interval holds 1 or there is none.
    """

    reference: str
    candidate: str
    speedup: float
    low: float | None
    high: float | None
    answer: Literal["faster", "slower", "no difference shown"]

    def __str__(self) -> str:
        sure = (
            "too few rounds for an interval"
            if self.low is None
            else f"95 %: {self.low:.3f} to {self.high:.3f}"
        )
        if self.answer == "no difference shown":
            said = f"no difference shown between {self.candidate} and {self.reference}: speed-up"
        else:
            said = f"{self.candidate} is {self.answer} than {self.reference}: speed-up"
        return f"{said} {self.speedup:.3f} ({sure})"


def judge(reference: Series, candidate: Series) -> TimingVerdict:
    """Compare two series measured in the same rounds.

    Raises:
        UsageError: different numbers of rounds, or a time that is not positive.
    """
    if len(reference.rounds) != len(candidate.rounds):
        raise UsageError("the two were measured in different rounds", fix="measure them together")
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


def _answer(low: float | None, high: float | None) -> Literal["faster", "slower", "no difference shown"]:
    if low is not None and low > 1:
        return "faster"
    if high is not None and high < 1:
        return "slower"
    return "no difference shown"
