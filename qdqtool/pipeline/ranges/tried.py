"""Rows of the journal: candidates that were compared by the noise of the outputs.

`value` is the SQNR of the outputs in dB. `gain` is over the candidate that was compared with: of calibrators the best single
one, of equalization and rounding the table without them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from qdqtool.accuracy.intervals import gained
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.evidence import tied
from qdqtool.core.journal import Journal, TrialOutcome, TrialRecord
from qdqtool.core.wording import counted
from qdqtool.pipeline.ranges.executor import decibels

OBJECTIVE: Final = "SQNR of the outputs"
"""Outputs that end in a softmax are measured before it."""

Records = tuple[TrialRecord, ...]


def compared(
    what: str,
    shares: Sequence[float],
    against: Sequence[float],
    outcome: tuple[TrialOutcome, str],
    settings: tuple[str, ...] = (),
) -> TrialRecord:
    """One candidate with what each sample adds to its noise, compared on the samples that `against` ran too.

    `outcome` comes with its reason. Noise that is not finite has no gain.
    """
    both = min(len(shares), len(against))
    noise = sum(shares)
    is_whole = len(shares) >= len(against)
    if not math.isfinite(noise) or not math.isfinite(sum(against)):
        return TrialRecord(
            what=what, outcome=outcome[0], why=outcome[1], settings=settings, samples=len(shares)
        )
    found = gained(what, settings, against[:both], shares[:both])
    return TrialRecord(
        what=what,
        outcome=outcome[0],
        why=outcome[1],
        settings=settings,
        value=round(decibels(noise), 3) if noise > 0 and is_whole else None,
        gain=_rounded(found.gain_db),
        low=_rounded(found.gain_low),
        high=_rounded(found.gain_high),
        samples=len(shares),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)


def singles(
    shares: Mapping[str, tuple[float, ...]],
    best: str,
    *,
    mean: bool = False,
    settings: str = "calibrate.method={}",
) -> Records:
    """The candidates of which the one that looks best is kept, or the `mean` of those that are tied; the best one first.

    `shares` is what each sample adds to the noise of each candidate; one with fewer samples was stopped.
    """
    whole = {name: one for name, one in shares.items() if len(one) == len(shares[best])}
    alike = tied(whole)

    def outcome(name: str) -> tuple[TrialOutcome, str]:
        if name not in whole:
            return (
                TrialOutcome.DROPPED,
                f"more noise than {best} after {counted(len(shares[name]), 'sample')}",
            )
        if not math.isfinite(sum(whole[name])):
            return TrialOutcome.REJECTED, "outputs that are NaN or infinite"
        if name not in alike:
            return TrialOutcome.REJECTED, f"significantly more noise than {best}"
        if mean:
            return TrialOutcome.TIED, "part of the mean"
        if name == best:
            return TrialOutcome.KEPT, "least noise"
        return TrialOutcome.TIED, f"no significant difference from {best}"

    order = sorted(shares, key=lambda name: (name != best, -len(shares[name]), sum(shares[name])))
    return tuple(
        compared(
            name, shares[name], shares[best], outcome(name), (settings.format(name),) if settings else ()
        )
        for name in order
    )


def same_ranges(tables: Mapping[str, CalibrationTable], tried: Sequence[str]) -> Records:
    """The calibrators whose ranges are those of another one, which was tried."""
    keys = {name: tuple(entry.amax for entry in table.ranges) for name, table in tables.items()}
    first = {keys[name]: name for name in tried}
    return tuple(
        TrialRecord(
            what=name, outcome=TrialOutcome.NOT_TRIED, why=f"the same ranges as {first.get(key, tried[0])}"
        )
        for name, key in keys.items()
        if name not in tried
    )


def with_journal(table: CalibrationTable, records: Records) -> CalibrationTable:
    """The table with what was tried for it."""
    return (
        replace(table, journal=Journal(search="ranges", objective=OBJECTIVE, unit="dB", trials=records))
        if records
        else table
    )


def replaced_by(records: Records, why: str) -> Records:
    """The same records after another choice has replaced what they kept."""
    return tuple(
        replace(one, outcome=TrialOutcome.REJECTED, why=why) if one.outcome is TrialOutcome.KEPT else one
        for one in records
    )
