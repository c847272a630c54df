"""The core of searches by output noise: an edit, its noise for each sample, and the decision in the journal.

A proposer makes an `NetworkEdit` and has it measured (`OutputNoise`: one number per sample, lower is better). `Search.keeps` compares it with
the network before: it must gain more than is asked for, and significantly from sample to sample (`core.evidence`, corrected
for the number of candidates). Every edit becomes a row of the journal, kept or not, with the reason.

In a row, `value` is the SQNR of the outputs in dB. `gain` is the gain over the compared candidate: for calibrators
the best single one, for equalization and rounding the table without them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from typing import Final

from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.evidence import CONFIDENCE, better, find_ties, record_gain
from qdqtool.core.journal import Journal, TrialOutcome, TrialRecord
from qdqtool.core.sensitivity import Cure
from qdqtool.core.wording import count_noun

OBJECTIVE: Final = "SQNR of the outputs"
"""Objective of searches by noise. Outputs that end in a softmax are measured before the softmax."""
_ROOT: Final = 0.25
"""Power of the noise of a sample that is compared. With 1, a few noisy samples decide. In decibels, samples with almost no
noise decide: if an output has two classes, one sample in twelve has less than 1 % of the usual noise by chance.
"""

Records = tuple[TrialRecord, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkEdit:
    """One change of a quantized network.

    Attributes:
        what: the change in words.
        settings: recipe values that make the change in a new run, as `--set` takes them; () if there are none.
    """

    what: str
    settings: tuple[str, ...] = ()

    def gain(self, before: Sequence[float], after: Sequence[float]) -> Cure:
        """Return the gain at the outputs by an edit, from the noise of each sample without and with the edit."""
        return record_gain(self.what, self.settings, before, after)


def kept_float(name: str, nodes: Iterable[str], excluded: Sequence[str] = ()) -> NetworkEdit:
    """Return the edit that keeps these nodes float, and also the nodes that the recipe excludes with patterns `excluded`."""
    patterns = json.dumps([*excluded, *map(escape, nodes)])
    return NetworkEdit(what=name, settings=(f"place.exclude={patterns}",))


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputNoise:
    """The noise at the outputs of a quantized network, sample by sample.

    Attributes:
        shares: for each sample its part of `noise`.
    """

    shares: tuple[float, ...]

    @property
    def noise(self) -> float:
        """Energy of the outputs' differences relative to the outputs' energy, averaged over the outputs."""
        return sum(self.shares)

    @property
    def mean(self) -> float:
        """The average part of `noise` per sample."""
        return self.noise / max(1, len(self.shares))

    @property
    def roots(self) -> tuple[float, ...]:
        """The noise of each sample to the power 1/4; comparisons use these values."""
        return tuple(share**_ROOT for share in self.shares)

    @property
    def decibel(self) -> float:
        """SQNR of the outputs in dB; infinite without noise."""
        return decibels(self.noise)

    def on(self, places: Sequence[int]) -> OutputNoise:
        """Return the noise of only the samples at these indices."""
        return OutputNoise(shares=tuple(self.shares[place] for place in places))


def decibels(noise: float) -> float:
    """Convert noise, relative to the energy of the signal, to SQNR in dB; infinite without noise."""
    return -10 * math.log10(noise) if noise > 0 else math.inf


def has_less_noise(
    after: OutputNoise,
    before: OutputNoise,
    gain_db: float = 0.0,
    candidates: int = 1,
    confidence: float = CONFIDENCE,
) -> bool:
    """Return True if the outputs gain more than `gain_db` on all samples together, and if the gain is significant.

    A few samples may hold most of the noise, and any change of the weights gains or loses decibels of their sum. So
    the fourth roots of the noise of samples are compared. Samples with almost no noise do not matter: a classifier
    that is sure of a sample gives equal outputs with much more noise. `candidates` is the number of changes that were
    compared with `before`.
    """
    gains = after.noise < before.noise and after.decibel - before.decibel > gain_db
    return gains and better(after.roots, before.roots, confidence, candidates)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeastGain:
    """The smallest gain for which an edit is kept.

    Attributes:
        gain_db: dB on all samples together.
        candidates: edits that are compared with the same network.
        unseen: places of the samples that must gain significantly, for edits that are fitted to the others; None for all.
        is_proven: whether the gain must be significant. Otherwise it must only be more likely than a loss.
    """

    gain_db: float
    candidates: int = 1
    unseen: Sequence[int] | None = None
    is_proven: bool = True

    def is_met(self, after: OutputNoise, before: OutputNoise) -> bool:
        """Return True if the gain of an edit is large enough and significant."""
        if self.unseen is None:
            candidates, confidence = (self.candidates, CONFIDENCE) if self.is_proven else (1, 0.5)
            return has_less_noise(after, before, self.gain_db, candidates, confidence)
        gains = after.decibel - before.decibel > self.gain_db
        return gains and has_less_noise(
            after.on(self.unseen), before.on(self.unseen), candidates=self.candidates
        )


class Search:
    """The journal of one search: decides about each edit, and records the decision."""

    def __init__(self) -> None:
        self._records: list[TrialRecord] = []

    @property
    def records(self) -> Records:
        """Records of all edits so far."""
        return tuple(self._records)

    def keeps(self, edit: NetworkEdit, after: OutputNoise, before: OutputNoise, least: LeastGain) -> bool:
        """Decide whether an edit is kept, from the noise with and without it, and record the decision."""
        is_kept = least.is_met(after, before)
        gain = f"more than {least.gain_db:g} dB"
        kept = "significant gain"
        if least.unseen is not None:
            kept = f"{gain}, significant on samples that rounding did not see"
        outcome = (
            (TrialOutcome.KEPT, kept)
            if is_kept
            else (TrialOutcome.REJECTED, f"no {'significant ' * least.is_proven}gain of {gain}")
        )
        self._records.append(record_comparison(edit, after.shares, before.shares, outcome))
        return is_kept

    def leaves(self, edit: NetworkEdit, why: str) -> None:
        """Record that an edit was not tried, with the reason."""
        self._records.append(
            TrialRecord(what=edit.what, settings=edit.settings, outcome=TrialOutcome.NOT_TRIED, why=why)
        )

    def replaces(self, name: str, outcome: tuple[TrialOutcome, str]) -> None:
        """Replace the recorded outcome of the edit with this name."""
        self._records = [
            replace(record, outcome=outcome[0], why=outcome[1]) if record.what == name else record
            for record in self._records
        ]


def record_comparison(
    edit: NetworkEdit, shares: Sequence[float], against: Sequence[float], outcome: tuple[TrialOutcome, str]
) -> TrialRecord:
    """Return the journal record of an edit: its noise `shares`, and its gain over the noise `against`.

    The gain counts only the samples that both have.

    `outcome` comes with its reason. Noise that is not finite has no gain.
    """
    both = min(len(shares), len(against))
    noise = sum(shares)
    row = TrialRecord(
        what=edit.what, outcome=outcome[0], why=outcome[1], settings=edit.settings, samples=len(shares)
    )
    if not math.isfinite(noise) or not math.isfinite(sum(against)):
        return row
    cure = edit.gain(against[:both], shares[:both])
    return replace(
        row,
        value=round(decibels(noise), 3) if noise > 0 and len(shares) >= len(against) else None,
        gain=_round_value(cure.gain_db),
        low=_round_value(cure.gain_low),
        high=_round_value(cure.gain_high),
    )


def _round_value(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)


def singles(
    shares: Mapping[str, tuple[float, ...]],
    best: str,
    *,
    mean: bool = False,
    settings: str = "calibrate.method={}",
) -> Records:
    """Return the journal records of candidates, the best first. The best was kept, or the mean of tied ones.

    `shares` is the noise of each sample under each candidate. A candidate with fewer samples was stopped.
    """
    whole = {name: noises for name, noises in shares.items() if len(noises) == len(shares[best])}
    alike = find_ties(whole)

    def outcome(name: str) -> tuple[TrialOutcome, str]:
        if name not in whole:
            return (
                TrialOutcome.DROPPED,
                f"more noise than {best} after {count_noun(len(shares[name]), 'sample')}",
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
        record_comparison(
            NetworkEdit(what=name, settings=(settings.format(name),) if settings else ()),
            shares[name],
            shares[best],
            outcome(name),
        )
        for name in order
    )


def same_ranges(tables: Mapping[str, CalibrationTable], tried: Sequence[str]) -> Records:
    """Return records of calibrators that were not tried because another calibrator gave equal ranges."""
    keys = {name: tuple(entry.amax for entry in table.ranges) for name, table in tables.items()}
    first = {keys[name]: name for name in tried}
    return tuple(
        TrialRecord(
            what=name,
            outcome=TrialOutcome.NOT_TRIED,
            why=f"the ranges are equal to those of {first.get(key, tried[0])}",
        )
        for name, key in keys.items()
        if name not in tried
    )


def with_journal(table: CalibrationTable, records: Records) -> CalibrationTable:
    """Return the table with a journal of these records."""
    return (
        replace(table, journal=Journal(search="ranges", objective=OBJECTIVE, unit="dB", trials=records))
        if records
        else table
    )


def mark_replaced(records: Records, why: str) -> Records:
    """Return the records with kept edits marked as rejected, for the reason `why`."""
    return tuple(
        replace(record, outcome=TrialOutcome.REJECTED, why=why)
        if record.outcome is TrialOutcome.KEPT
        else record
        for record in records
    )
