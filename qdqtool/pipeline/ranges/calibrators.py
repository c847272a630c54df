"""`calibrate.method: auto`: chooses the calibrator by the outputs of the network, not by the values of single tensors.

No calibrator is best on every network: clipping that lowers the noise of each tensor can remove the one channel that
a detector needs. Only the outputs show which calibrator is right. All candidate tables come from one collection, and
one session runs all tables (`executor`).

1. Evaluate every competing calibrator on the samples that choose, and take the one with the lowest noise. Noise is
   relative to the signal of the outputs, each output with equal weight (`reference`). If samples run one by one, a
   calibrator stops as soon as its noise exceeds the noise of the best calibrator on all samples. For a large network,
   all calibrators run 8 samples, and those that are significantly noisier on these stop there.
2. For a large network with more than 16 samples, the mean of all candidates that are statistically tied with the best
  is a candidate too. It is used if it has less noise than all of them.

The ranges of the second best calibrator in parts of a small network are not tried: with all inferences that they would take, no
part was kept in 16 choices on four networks (`docs/decisions/searches.md`).

With few samples all of this is chance, and `few_samples` chooses instead.

If biases will be corrected, candidates are evaluated with corrected biases: correction removes much of the error of clipping
and can change the order. A network that takes batches corrects biases while it runs; for others every candidate is corrected
layer by layer, on eight of the samples (`layer_walk`).

A mean of ranges is hardly noisier than the mean of both sides, and often less noisy than either: noise falls as a range grows
until it clips little, and rises as steps grow. Each range is the geometric mean of the candidates', each weighted with the
probability that it is as good as the best (`core.evidence`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.table import Constants, make_tables, working_methods
from qdqtool.core.calibration import CALIBRATORS, CalibrationTable, TensorRange
from qdqtool.core.evidence import find_ties
from qdqtool.core.journal import TrialOutcome
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import AUTO, CalibrationOptions
from qdqtool.core.weights import WeightChanges
from qdqtool.core.wording import count_noun
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.executor import TrialSession, TriedTable
from qdqtool.pipeline.ranges.reference import Reference
from qdqtool.pipeline.ranges.samples import OF_LARGE, TAKEN, is_small, some_first
from qdqtool.pipeline.search.experiment import (
    NetworkEdit,
    Records,
    decibels,
    record_comparison,
    same_ranges,
    singles,
)

_FEW: Final = 2 * OF_LARGE
"""Number of samples up to which every calibrator runs all samples: fewer would save little, and 8 of 16 may mislead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """The table chosen by output noise, and its noise.

    Attributes:
        table: the table without bias shifts.
        best: the table with the shifts of the trial, and its noise on the samples.
        trial: the session that ran it.
        samples: the samples on which `best` was judged; if biases are corrected, no more than fit into one run.
        records: every candidate that was tried.
        rivals: ranges of the other calibrators that ran all samples, by calibrator. With zero points one of them may have less noise.
    """

    table: CalibrationTable
    best: TriedTable
    trial: TrialSession
    samples: tuple[Sample, ...]
    records: Records = ()
    rivals: Mapping[str, tuple[TensorRange, ...]] = field(default_factory=dict, repr=False)


def competing() -> tuple[str, ...]:
    """Return the calibrators to compare, in alphabetical order; broken calibrators of other packages are skipped."""
    return tuple(name for name in working_methods() if CALIBRATORS.load(name).competes)


def single_tables(
    placement: Placement,
    collected: tuple[Histograms, Constants],
    options: CalibrationOptions,
    weights: WeightChanges | None = None,
    methods: Sequence[str] = (),
) -> dict[str, CalibrationTable]:
    """Make one table for each calibrator in `methods`, or for each calibrator that `auto` compares."""
    methods = methods or competing()
    choices = [options.model_copy(update={"method": method}) for method in methods]
    tables = make_tables(collected[0], placement, collected[1], choices)
    return {method: replace(table, weights=weights) for method, table in zip(methods, tables, strict=True)}


def distinct(tables: Mapping[str, CalibrationTable]) -> tuple[str, ...]:
    """Return the first calibrator of each group with equal ranges. Without activations, all calibrators are one group."""
    method_of = {
        tuple(entry.amax for entry in table.ranges): method for method, table in reversed([*tables.items()])
    }
    return tuple(sorted(method_of.values()))


def choose(
    model: Model,
    placement: Placement,
    collected: tuple[Histograms, Constants],
    options: CalibrationOptions,
    reference: Reference,
    weights: WeightChanges | None = None,
    more: int = 0,
) -> Judged:
    """Return the table with the least noise at the outputs. Each range names its calibrator and the gain of the choice.

    Every candidate has its weights rounded as `weights` says. Inferences for `more` trials with this number of
    samples are reserved.

    Overrides and factors of the recipe hold in every candidate. Biases are not shifted yet: `add_shifts` comes after. At
    most 192 inferences are spent, and 8 more per calibrator if none leaves early and all samples run as one batch.

    Raises:
        UsageError, InputFileError: as `make_tables` and the runners.
    """
    tables = single_tables(placement, collected, options, weights)
    distinct_tables = {method: tables[method] for method in distinct(tables)}
    trial = TrialSession(model, placement, next(iter(tables.values())), reference, reference.budget)
    is_large = len(reference.samples) <= TAKEN or not is_small(model.view)
    is_averaged = is_large and len(distinct_tables) > 1 and len(reference.samples) > _FEW
    samples = trial.at_once(len(distinct_tables) + more + is_averaged)
    some_leave = is_large and len(distinct_tables) > 1 and len(samples) > _FEW
    if some_leave:
        samples = some_first(samples)
    tried = trial.raced(distinct_tables, samples, some_leave=some_leave)
    best = _average_tied(trial, tried, samples) if is_averaged else tried[0]
    is_mean = best is not tried[0]
    records: Records = (
        *singles({candidate.method: candidate.shares for candidate in tried}, tried[0].method, mean=is_mean),
        *same_ranges(tables, [*distinct_tables]),
    )
    if is_mean:
        edit = NetworkEdit(what="mean of tied calibrators")
        kept = (TrialOutcome.KEPT, f"less noise than {tried[0].method} alone")
        records += (record_comparison(edit, best.shares, tried[0].shares, kept),)
    gain = max(_gain(best, candidate) for candidate in tried)
    table = explain_choice(best.table, tables, gain, describe_choice(len(tried), len(best.shares)))
    whole = [candidate for candidate in tried if len(candidate.shares) == len(samples)]
    rivals = {candidate.method: candidate.table.ranges for candidate in whole if candidate is not best}
    return Judged(table=table, best=best, trial=trial, samples=samples, records=records, rivals=rivals)


def _average_tied(trial: TrialSession, tried: Sequence[TriedTable], samples: Sequence[Sample]) -> TriedTable:
    """Return the mean of all tables that are statistically tied with the best, or the best table if it has less noise."""
    best = tried[0]
    whole = {candidate.method: candidate for candidate in tried if len(candidate.shares) == len(samples)}
    alike = weigh_ties({method: candidate.shares for method, candidate in whole.items()})
    if len(alike) <= 1:
        return best
    mean = trial.candidate(
        AUTO, mean_table({name: candidate.table for name, candidate in whole.items()}, alike), samples
    )
    return mean if mean.noise < best.noise else best


def describe_choice(candidates: int, samples: int) -> str:
    """Return the words for a choice of ranges by the noise of the outputs, for the calibration journal."""
    return f"{count_noun(candidates, 'candidate')} compared by the noise of the outputs on {count_noun(samples, 'sample')}"


def _gain(winner: TriedTable, rival: TriedTable) -> float:
    """Return how many dB less noise the winner has than the rival, on the samples that the rival ran."""
    mine, theirs = sum(winner.shares[: len(rival.shares)]), sum(rival.shares)
    return decibels(mine) - decibels(theirs) if mine > 0 and theirs > 0 else 0.0


def explain_choice(
    table: CalibrationTable, singles: Mapping[str, CalibrationTable], gain: float, step: str
) -> CalibrationTable:
    """Return the chosen table without bias shifts; ranges on which the calibrators differ get the gain."""
    rows = [single.by_tensor() for single in singles.values()]

    def with_gain(entry: TensorRange) -> TensorRange:
        if all(row[entry.tensor].amax == entry.amax for row in rows):
            return entry
        return entry.since(step, gain_db=round(gain, 2) if math.isfinite(gain) else entry.gain_db)

    return replace(table, ranges=tuple(map(with_gain, table.ranges)), shifts=())


def weigh_ties(shares: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
    """Return weights, highest first, for the candidates tied with the best; the weights add up to 1.

    `shares` is the noise of each sample by the name of the candidate.
    """
    chances = find_ties(shares)
    whole = sum(chances.values())
    return {name: chances[name] / whole for name in sorted(chances, key=lambda name: -chances[name])}


def mean_table(tables: Mapping[str, CalibrationTable], weights: Mapping[str, float]) -> CalibrationTable:
    """Return the table of mean ranges of several tables, without bias shifts.

    Each range names its candidates; its calibrator is the candidate with the highest weight.
    """
    rows = [tables[name].by_tensor() for name in weights]
    shares = [*weights.values()]
    origin = "mean of " + ", ".join(f"{name} ({100 * weight:.0f} %)" for name, weight in weights.items())

    def mean(entry: TensorRange) -> TensorRange:
        values = np.array([row[entry.tensor].amax for row in rows])
        if (values == values[0]).all():
            return entry
        amax = np.exp(np.average(np.log(values), axis=0, weights=shares))
        note = "; ".join(word for word in (entry.note, origin) if word)
        return entry.since(origin, amax=tuple(float(value) for value in amax), note=note)

    heaviest = tables[next(iter(weights))]
    return replace(heaviest, ranges=tuple(mean(entry) for entry in heaviest.ranges), shifts=())
