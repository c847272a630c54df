"""`calibrate.method: auto` for few samples: chooses for unseen samples, and averages tied candidates.

A choice by 8 to 72 samples depends on chance, for two reasons:

- Every calibrator clips least on its own samples, and their largest value is not the largest future value. So the
  samples are divided into four parts. Ranges from three parts run the fourth part. The ranges of the two calibrators
  with the lowest noise also run 12 and 25 % wider. No range is widened by more than the difference of the peaks of
  the parts. If all parts reach an equal value (a white pixel), other samples will not exceed it, and a coarser step
  would gain nothing.
- The outputs of few samples are few numbers. If all ranges change by one percent, rounding changes, and the noise
  changes by as much as calibrators differ (`docs/verified.md` has the figures). Candidates that differ by less are
  tied.

A part has too few samples for the correction of biases, so ranges that clip look worse on unseen parts than they are.
On their own samples they look better than they are. Both figures count, with equal weight. The result is the mean of
all candidates that are tied with the best (`pipeline.ranges.calibrators.mean_table`). The mean is evaluated too, and
used unless it is significantly noisier.

So the result is not significantly noisier than the best single calibrator, by both figures together. On the given
samples alone it may be. With many samples, their largest value is reliable, and chance is small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qdqtool.calibration.collect import Collection
from qdqtool.calibration.histograms import NOTHING, Histograms, Span, merge_histograms
from qdqtool.calibration.pool import CollectOptions
from qdqtool.calibration.samples.conform import fixed_batch
from qdqtool.calibration.table import Bound, Constants, groups
from qdqtool.core.calibration import CalibrationTable, NodeShift, TensorRange
from qdqtool.core.evidence import better
from qdqtool.core.journal import TrialOutcome
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import AUTO, CalibrationOptions
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.view import Model
from qdqtool.pipeline.ranges.calibrators import (
    Judged,
    competing,
    describe_choice,
    distinct,
    explain_choice,
    mean_table,
    single_tables,
    weigh_ties,
)
from qdqtool.pipeline.ranges.executor import TrialSession
from qdqtool.pipeline.ranges.reference import PASSES, Reference
from qdqtool.pipeline.ranges.samples import FOLDS, TAKEN, count_taken, fold, is_small, without
from qdqtool.pipeline.search.experiment import (
    NetworkEdit,
    OutputNoise,
    Records,
    decibels,
    record_comparison,
    same_ranges,
    singles,
)
from qdqtool.platform import give_back

MARGINS: Final = (1.12, 1.25)
"""Factors that widen ranges; margins half as wide again were worse on four networks."""
WIDENED: Final = 2
"""Number of calibrators whose ranges are also tried wider: those with the lowest noise."""
_FEWEST, _MOST = 8, 72
"""Fewest and most samples for this choice. Between them, further samples would exceed the largest value seen,
and the parts show by how much. With more samples, this choice would cost more than the choice by 256 samples
of a small model.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate(OutputNoise):
    """A calibrator with a margin: a table from all samples, and a table without each fold of the samples.

    Its noise is half the noise with ranges of all samples, plus half the noise with ranges that a sample had no part
    in.

    Attributes:
        name: calibrator and margin.
        table: of all samples.
        parts: without part 0, 1, 2 and 3.
    """

    name: str
    table: CalibrationTable
    parts: tuple[CalibrationTable, ...]


def most_inferences(whole: int) -> int:
    """Return the largest number of inferences that a choice of ranges with `whole` samples needs.

    Each sample runs twice with every calibrator, with the margins of two calibrators and with their mean, and once
    with the result. The run of the float model is counted elsewhere. If samples run one by one, a walk over the
    layers with 8 samples also shifts the biases of each candidate.
    """
    return (5 + 2 * (len(competing()) + WIDENED * len(MARGINS))) * whole


def parts_of(
    model: Model, placement: Placement, reference: Reference, options: CalibrationOptions, whole: int
) -> tuple[Histograms, ...]:
    """Collect histograms of each part of the samples; () if the choice for few samples does not apply.

    `whole` is the number of samples before damaged ones were left out. If the recipe sets ranges by name or by a
    factor, the choice for few samples does not apply.

    Raises:
        InputFileError: as the runners.
    """
    samples = reference.samples
    few = len(samples)  # fewer than `whole` if some samples are skipped because of their values
    if (
        count_taken(model.view, whole) < whole
        or options.overrides
        or options.shrink
        or not _is_affordable(model, few)
    ):
        return ()
    collection = Collection(model, placement, reference.source, options=CollectOptions(on_nan="skip"))
    spans = (Span(shard=part, shards=FOLDS, total=few) for part in range(FOLDS))
    parts = tuple(collection.run(span) for span in spans)
    del collection
    give_back()
    return parts


def choose_for_others(
    model: Model,
    placement: Placement,
    collected: tuple[Histograms, Constants],
    options: CalibrationOptions,
    reference: Reference,
    histograms: tuple[Histograms, ...],
    weights: WeightChanges | None = None,
) -> Judged:
    """Return the table with the least output noise, on its own samples and on samples that it has not seen.

    `histograms` are the histograms that `parts_of` gave; the other arguments are those of `pipeline.ranges.calibrators.choose`.

    Raises:
        UsageError, InputFileError: as `make_tables` and the runners.
    """
    constants = collected[1]
    wholes = single_tables(placement, collected, options, weights)
    narrow = [
        single_tables(placement, (_merge_parts(without(histograms, part)), constants), options, weights)
        for part in range(FOLDS)
    ]
    methods = distinct(wholes)
    trial = TrialSession(model, placement, wholes[methods[0]], reference, reference.budget)
    reference.budget.most = most_inferences(len(reference.samples))

    def judge_candidate(name: str, table: CalibrationTable, parts: Sequence[CalibrationTable]) -> _Candidate:
        shares = _shares(trial, table, parts)
        return _Candidate(name=name, table=table, parts=tuple(parts), shares=shares)

    tried = [judge_candidate(name, wholes[name], [part[name] for part in narrow]) for name in methods]
    noisiest = max(candidate.noise for candidate in tried)
    for candidate in sorted(tried, key=lambda candidate: candidate.noise)[:WIDENED]:
        for margin in MARGINS:
            table = _wider(candidate.table, placement, constants.bounds, histograms, margin)
            if table.ranges == candidate.table.ranges:
                continue
            parts = [
                _wider(ranges, placement, constants.bounds, without(histograms, part), margin)
                for part, ranges in enumerate(candidate.parts)
            ]
            tried.append(judge_candidate(f"{candidate.name} times {margin:g}", table, parts))
    best = _average_tied(tried, judge_candidate)
    least_noisy = min(tried, key=lambda candidate: candidate.noise)
    shares = {candidate.name: candidate.shares for candidate in tried}
    is_mean = best not in tried
    records: Records = singles(shares, least_noisy.name, mean=is_mean, settings="")
    if is_mean:
        kept = (
            TrialOutcome.KEPT,
            f"statistically tied with {least_noisy.name}, and less likely to be a result of chance",
        )
        records += (
            record_comparison(
                NetworkEdit(what="mean of tied candidates"), best.shares, least_noisy.shares, kept
            ),
        )
    records += same_ranges(wholes, methods)
    gain = decibels(best.noise) - decibels(noisiest)
    step = describe_choice(len(tried), len(reference.samples))
    table = explain_choice(best.table, wholes, gain, step)
    final = trial.candidate(AUTO, table, reference.samples)
    return Judged(
        table=table,
        best=final,
        trial=trial,
        samples=reference.samples,
        records=records,
    )


def _is_affordable(model: Model, whole: int) -> bool:
    """Return True if there are few samples, and the model is small or the cost is within the budget."""
    if not _FEWEST <= whole <= _MOST or fixed_batch(model.view.inputs) not in {None, 1}:
        return False
    return is_small(model.view) or most_inferences(whole) <= PASSES * TAKEN


def _merge_parts(parts: Sequence[Histograms]) -> Histograms:
    return replace(
        parts[0],
        tensors=merge_histograms(part.tensors for part in parts),
        samples=sum(part.samples for part in parts),
        span=NOTHING,
    )


def _shares(
    trial: TrialSession, table: CalibrationTable, parts: Sequence[CalibrationTable]
) -> tuple[float, ...]:
    """Return each sample's noise, averaged over two tables: from all samples, and without the sample's fold.

    If samples run one by one, biases are shifted with the ranges of all samples; in a batch, each part shifts its own
    biases.
    """
    samples = trial.reference.samples
    outcome = trial.candidate(AUTO, table, samples)
    shifts: tuple[NodeShift, ...] = () if trial.is_batched else outcome.table.shifts
    shares = np.array(outcome.shares)
    for part, ranges in enumerate(parts):
        unseen, seen_samples = fold(samples, part)
        held_out = trial.candidate(
            AUTO, replace(ranges, shifts=shifts), unseen, among=(*unseen, *seen_samples)
        )
        shares[part::FOLDS] += held_out.shares
    return tuple((shares / 2).tolist())


def _average_tied(
    tried: Sequence[_Candidate],
    judged: Callable[[str, CalibrationTable, Sequence[CalibrationTable]], _Candidate],
) -> _Candidate:
    """Return the mean of all candidates that are statistically tied with the best.

    If the mean is significantly noisier, return the least noisy candidate.
    """
    least_noisy = min(tried, key=lambda candidate: candidate.noise)
    alike = weigh_ties({candidate.name: candidate.shares for candidate in tried})
    if len(alike) <= 1:
        return least_noisy
    table = mean_table({candidate.name: candidate.table for candidate in tried}, alike)
    parts = [
        mean_table({candidate.name: candidate.parts[part] for candidate in tried}, alike)
        for part in range(len(least_noisy.parts))
    ]
    mean = judged("mean", table, parts)
    # the best of several looks better than it is; a mean that is tied with it is as good, and depends less on chance
    return least_noisy if better(least_noisy.shares, mean.shares, candidates=len(tried)) else mean


def _wider(
    table: CalibrationTable,
    placement: Placement,
    bounds: Mapping[str, Bound],
    parts: Sequence[Histograms],
    margin: float,
) -> CalibrationTable:
    """Widen activation ranges by `margin`, but not beyond the bounds of the values or the expected peaks."""
    ranges = table.by_tensor()
    wider: dict[str, TensorRange] = {}
    for group in groups(placement):
        limit = max(bounds[name].amax if name in bounds else math.inf for name in group)
        expected = max((_expect_largest(parts, name) for name in group), default=math.inf)
        for name in group:
            entry = ranges[name]
            amax = max(entry.amax[0], min(entry.amax[0] * margin, limit, expected))
            if amax > entry.amax[0] and (entry.low or entry.high):
                wider[name] = entry.since(f"times {margin:g}, for values that few samples miss", amax=(amax,))
    return replace(table, ranges=tuple(wider.get(entry.tensor, entry) for entry in table.ranges))


def _expect_largest(parts: Sequence[Histograms], tensor: str) -> float:
    """Return the expected largest value of unseen samples: the highest peak, scaled by the ratio of the parts' peaks."""
    peaks = [part.tensors[tensor].amax for part in parts if tensor in part.tensors]
    if not peaks or min(peaks) <= 0:
        return math.inf
    return max(peaks) ** 2 / min(peaks)
