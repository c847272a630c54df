"""The journal of a search: every tried candidate, its gain, and the reason to keep or reject it.

Calibration, accuracy limits, fixes of an audit and cures of a sensitivity study write rows of one kind, so that one
table can show all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class TrialOutcome(str, Enum):
    """Outcome of one candidate of a search: kept, rejected, ..."""

    KEPT = "kept"
    BETTER = "better"
    TIED = "tied"
    REJECTED = "rejected"
    DROPPED = "dropped"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRecord:
    """One candidate of a search.

    Attributes:
        what: the change, in words.
        outcome: kept; better (significantly, but only reported: no change was made); tied (no significant difference,
            and another candidate is kept, or the candidate is part of a mean); rejected; dropped (stopped before all
            samples); not tried.
        why: the reason of the outcome, one sentence.
        settings: recipe values that make the change, as values for `--set`.
        value: the objective with the change, in the unit of the journal; None if it was not measured on all samples.
        gain: the gain over the compared candidate, in this unit; None if unknown.
        low: lower end of the 95 % interval of `gain`, over samples that both ran; None if it is not known.
        high: upper end.
        samples: samples that it ran.
    """

    what: str
    outcome: TrialOutcome
    why: str = ""
    settings: tuple[str, ...] = ()
    value: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Journal:
    """All candidates of one search in order. If candidates were tried together, the best is first.

    Attributes:
        search: what was searched, in words.
        objective: what was measured, in words.
        unit: of values and gains: "dB", "points", "kernels", "ms".
        trials: every candidate.
    """

    search: str
    objective: str
    unit: str
    trials: tuple[TrialRecord, ...]

    @property
    def kept(self) -> tuple[TrialRecord, ...]:
        """The candidates whose change is in the result."""
        return tuple(trial for trial in self.trials if trial.outcome is TrialOutcome.KEPT)

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The candidates as rows of text for a table with the headings `HEAD`.

        Consecutive candidates with equal outcome, gain and reason share a row, which has the first two names.
        """
        alike: list[tuple[list[str], tuple[str, ...]]] = []
        for trial in self.trials:
            row = (trial.outcome.value, *_gain(trial, self.unit), str(trial.samples or ""), trial.why)
            if alike and alike[-1][1] == row:
                alike[-1][0].append(trial.what)
            else:
                alike.append(([trial.what], row))
        return tuple((_several(names), *row) for names, row in alike)


HEAD = ("candidate", "outcome", "gain", "95 % interval", "samples", "why")
"""Columns of `Journal.rows`."""


_NAMED = 2
"""Number of candidates that a shared row names."""


def _several(names: list[str]) -> str:
    more = len(names) - _NAMED
    return f"{'; '.join(names[:_NAMED])} and {more} more" if more > 0 else "; ".join(names)


def _gain(trial: TrialRecord, unit: str) -> tuple[str, str]:
    if trial.gain is None:
        return "", ""
    digits = {"kernels": 0, "ms": 4}.get(unit, 2)
    has_interval = trial.low is not None and trial.high is not None
    ends = f"{trial.low:+.{digits}f} to {trial.high:+.{digits}f}" if has_interval else ""
    return f"{trial.gain:+.{digits}f} {unit}", ends
