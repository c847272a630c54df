"""`calibrate.method: auto`: the calibrator is chosen by what comes out of the network, not by what goes into a tensor.

No calibrator is best on every network: clipping that quietens each tensor can silence the one channel a detector
lives on. Which one is right shows at the outputs. All candidate tables come from one collection, and one session runs
them all: ranges and biases are inputs of the Q/DQ model (`graph.tunable`), weights stay constants.

1. Every competing calibrator is judged on the same samples, and the quietest table wins: by what judges, none of the others
   is better on these. The measure is the noise of the outputs relative to their signal, each output weighing the same, and for
   an output that comes from a softmax that of the scores that go into it (`pipeline.ranges.executor`). Where samples
   run one by one their noises add up, so that a calibrator is left as soon as it has made more noise than the best one
   made on all of them. Of a large model all calibrators run 8 samples, and more only those that these
   do not show to be noisier: few samples may choose one that is noisier on others.
2. Of large models, where more than 16 samples judge, the mean of all that cannot be told from the quietest (`pipeline.ranges.calibrators`) is judged
   too, and taken where it is quieter than all of them.
3. Of small ones, where the second best is within 0.2 dB and the budget allows it, each quarter of the network, in
   graph order, is tried with the runner-up's ranges and keeps them where the outputs gain more than 0.2 dB, and significantly
   (`core.evidence`, corrected for the number of quarters).

With few samples all of this is chance, and `pipeline.ranges.few_samples` chooses instead.

Where biases are going to be corrected the candidates are judged with corrected biases, since correction takes back
much of what clipping does to the means and can change the order.
A model that takes batches corrects itself while it runs; elsewhere every candidate is corrected layer by layer, on eight of
the samples (`pipeline.ranges.layer_walk`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.table import Constants, groups, make_tables, working_methods
from qdqtool.core.calibration import CALIBRATORS, CalibrationTable, TensorRange
from qdqtool.core.evidence import better, tied
from qdqtool.core.journal import TrialOutcome, TrialRecord
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import AUTO, CalibrationOptions
from qdqtool.core.weights import WeightChanges
from qdqtool.core.wording import counted
from qdqtool.graph.model import Model
from qdqtool.pipeline.ranges.executor import TrialSession, TriedTable, decibels
from qdqtool.pipeline.ranges.reference import Reference
from qdqtool.pipeline.ranges.samples import CHOOSING, OF_LARGE, TAKEN, some_first
from qdqtool.pipeline.ranges.tried import Records, compared, same_ranges, singles

# Each costs as many inferences of the choosing samples as methods compete.
_BLOCKS: Final = 4
_SURE: Final = 0.957
"""Confidence with which it must be noisier: two standard errors on so few samples (Student's t, 7 degrees of freedom)."""
_FEW: Final = 2 * OF_LARGE
"""Samples that every calibrator runs all of: leaving some would save little, and 8 of 16 may well mislead."""
_WORTHWHILE: Final = 10 ** (0.2 / 10)
"""How many times noisier the second best may be: the ranges of one that is noisier are not mixed in."""
_LEAST_DB: Final = 0.2
"""What a mixture must gain: the outputs may lose as much on other samples if it gains less."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What was chosen, and how noisy it makes the outputs.

    Attributes:
        table: without bias shifts.
        best: the same with the shifts that the choice saw, and its noise on the samples.
        trial: the session that ran it.
        samples: what `best` was judged on; no more than fit into one run where biases are corrected.
        singles: the tables of all calibrators that competed.
        records: every candidate that was tried.
    """

    table: CalibrationTable
    best: TriedTable
    trial: TrialSession
    samples: tuple[Sample, ...]
    singles: Mapping[str, CalibrationTable]
    records: Records = ()


def competing() -> tuple[str, ...]:
    """The calibrators that are compared, in alphabetical order; broken ones of other distributions are left out."""
    return tuple(name for name in working_methods() if CALIBRATORS.load(name).competes)


def single_tables(
    placement: Placement,
    collected: tuple[Histograms, Constants],
    options: CalibrationOptions,
    weights: WeightChanges | None = None,
) -> dict[str, CalibrationTable]:
    """The table of every competing calibrator, in alphabetical order."""
    methods = competing()
    choices = [options.model_copy(update={"method": method}) for method in methods]
    made = make_tables(collected[0], placement, collected[1], choices)
    return {method: replace(table, weights=weights) for method, table in zip(methods, made, strict=True)}


def distinct(tables: Mapping[str, CalibrationTable]) -> tuple[str, ...]:
    """Calibrators that agree on every range are one candidate, the first; without activations all are: none has a say."""
    found = {
        tuple(entry.amax for entry in table.ranges): method for method, table in reversed([*tables.items()])
    }
    return tuple(sorted(found.values()))


def choose(
    model: Model,
    placement: Placement,
    collected: tuple[Histograms, Constants],
    options: CalibrationOptions,
    reference: Reference,
    weights: WeightChanges | None = None,
    more: int = 0,
) -> Judged:
    """The table whose model's outputs are the least noisy; each range says its calibrator and what it gained.

    `weights` are rounded in every candidate as it says. The budget is left with `more` judgements on as many samples.

    Overrides and factors of the recipe hold in every candidate. Biases are not shifted yet: `shifted` comes after. At
    most 192 inferences are spent.

    Raises:
        UsageError, InputFileError: as `make_tables` and the runners.
    """
    tables = single_tables(placement, collected, options, weights)
    wanted = {method: tables[method] for method in distinct(tables)}
    trial = TrialSession(model, placement, next(iter(tables.values())), reference, reference.budget)
    is_large = len(reference.samples) <= TAKEN
    is_averaged = is_large and len(wanted) > 1 and len(reference.samples) > _FEW
    samples = trial.at_once(len(wanted) + more + is_averaged)
    some_leave = is_large and len(wanted) > 1 and len(samples) > _FEW
    if some_leave:
        samples = some_first(samples)
    if not trial.is_batched:
        tried = _raced(trial, wanted, samples, some_leave=some_leave)
    elif some_leave:
        tried = _left_and_judged(trial, wanted, samples)
    else:
        tried = _all_judged(trial, wanted, samples)
    winner, *others = tried
    shares = {one.method: one.shares for one in tried}
    records: Records = ()
    mixed = winner
    if is_averaged:
        mixed = winner = _averaged(trial, tried, samples)
        if mixed is not tried[0]:
            kept = (TrialOutcome.KEPT, f"less noise than {tried[0].method} alone")
            records = (compared("mean of tied calibrators", mixed.shares, tried[0].shares, kept),)
    elif others and not is_large:
        mixed, records = _mixture(trial, (winner, others[0]), groups(placement), samples, more)
    records = (
        *singles(shares, tried[0].method, mean=is_averaged and mixed is not tried[0]),
        *same_ranges(tables, [*wanted]),
        *records,
    )
    table = _explained(mixed, (tried, winner), tables)
    return Judged(table=table, best=mixed, trial=trial, samples=samples, singles=tables, records=records)


def _left_and_judged(
    trial: TrialSession, tables: Mapping[str, CalibrationTable], samples: Sequence[Sample]
) -> list[TriedTable]:
    """The tables on these samples, the quietest first; behind them those that were left after the first of the samples."""
    some = samples[:OF_LARGE]
    began = trial.candidates(tables, some, among=samples)
    best = min(began, key=lambda one: one.noise)
    left = [one for one in began if _is_noisier(one, best)]
    ended = trial.continued([one for one in began if one not in left], samples)
    return sorted(ended, key=lambda one: one.noise) + sorted(left, key=lambda one: one.noise)


def _is_noisier(one: TriedTable, best: TriedTable) -> bool:
    """Whether the best is significantly better on the samples that both ran.

    Not corrected for the number of candidates: the question is whether this one is worth more samples. With a correction `max`,
    which clips nothing on the samples that judge, stays in means that are noisier on other samples.
    """
    both = min(len(one.shares), len(best.shares))
    return better(best.shares[:both], one.shares[:both], confidence=_SURE)


def _all_judged(
    trial: TrialSession, tables: Mapping[str, CalibrationTable], samples: Sequence[Sample]
) -> list[TriedTable]:
    """The tables on these samples, the quietest first."""
    return sorted(trial.candidates(tables, samples), key=lambda one: one.noise)


def _raced(
    trial: TrialSession,
    tables: Mapping[str, CalibrationTable],
    samples: Sequence[Sample],
    *,
    some_leave: bool,
) -> list[TriedTable]:
    """The same; those behind the first may have run some of the samples only, on which they are noisier than it on all.

    The one that looks best runs on, a few samples at a time. With `some_leave` those go that are noisier on the same samples.
    """
    running = {method: trial.started(method, table) for method, table in tables.items()}
    done: list[TriedTable] = []
    left: list[TriedTable] = []
    while running:
        method = min(running, key=lambda name: running[name].mean)
        running[method] = one = trial.advanced(running[method], samples, CHOOSING)
        if len(one.shares) == len(samples):
            done.append(running.pop(method))
        least = min((other.noise for other in done), default=math.inf)
        left += [running.pop(name) for name in [*running] if running[name].noise > least]
        if some_leave and all(one.shares for one in running.values()):
            best = min([*running.values(), *done], key=lambda one: one.mean)
            noisier = [name for name, one in running.items() if _is_noisier(one, best)]
            left += [running.pop(name) for name in noisier]
    return sorted(done, key=lambda one: one.noise) + sorted(left, key=lambda one: one.mean)


def _averaged(trial: TrialSession, tried: Sequence[TriedTable], samples: Sequence[Sample]) -> TriedTable:
    """The mean of those that cannot be told from the quietest, where it is quieter than that; else the quietest."""
    best = tried[0]
    whole = {one.method: one for one in tried if len(one.shares) == len(samples)}
    alike = weighted({method: one.shares for method, one in whole.items()})
    if len(alike) <= 1:
        return best
    mean = trial.candidate(AUTO, mean_table({name: one.table for name, one in whole.items()}, alike), samples)
    return mean if mean.noise < best.noise else best


def _mixture(
    trial: TrialSession,
    first: tuple[TriedTable, TriedTable],
    tied: Sequence[tuple[str, ...]],
    samples: Sequence[Sample],
    more: int,
) -> tuple[TriedTable, Records]:
    """The winner with the other's ranges in those blocks of the network where that pays, `more` judgements left over."""
    best, other = first
    if other.mean > _WORTHWHILE * best.mean:
        return best, ()
    records: list[TrialRecord] = []
    blocks = _blocks(trial, tied)
    for number, block in enumerate(blocks, 1):
        what = f"ranges of {other.method} in part {number} of {len(blocks)}"
        if trial.budget.spent + (1 + more) * len(samples) > trial.budget.most:
            records.append(TrialRecord(what=what, outcome=TrialOutcome.NOT_TRIED, why="no inferences left"))
            break
        table = _swapped(best.table, other.table, block)
        if table.ranges == best.table.ranges:
            continue
        found = trial.candidate(AUTO, table, samples)
        outcome = (TrialOutcome.REJECTED, f"no significant gain of more than {_LEAST_DB:g} dB")
        before = best
        if is_quieter(found, best, _LEAST_DB, len(blocks)):
            best, outcome = found, (TrialOutcome.KEPT, "significant gain")
        records.append(compared(what, found.shares, before.shares, outcome))
    return best, tuple(records)


def _blocks(trial: TrialSession, tied: Sequence[tuple[str, ...]]) -> list[frozenset[str]]:
    """The tuned tensors in parts of the network, with all that must share their ranges."""
    order = list(trial.tunable.scales)
    group_of = {name: group for group in tied for name in group}
    size = max(1, math.ceil(len(order) / _BLOCKS))
    blocks: list[frozenset[str]] = []
    known: set[str] = set()
    for start in range(0, len(order), size):
        part = {one for name in order[start : start + size] for one in group_of.get(name, (name,))} - known
        known |= part
        if part:
            blocks.append(frozenset(part))
    return blocks


def _swapped(table: CalibrationTable, other: CalibrationTable, tensors: frozenset[str]) -> CalibrationTable:
    theirs = other.by_tensor()
    step = "taken in this part of the network from the second best calibrator"
    ranges = tuple(
        theirs[entry.tensor].since(step)
        if entry.tensor in tensors and theirs[entry.tensor] != entry
        else entry
        for entry in table.ranges
    )
    return replace(table, ranges=ranges)


def chosen_by(candidates: int, samples: int) -> str:
    """The step of a range that was chosen by the outputs, in words."""
    return f"{counted(candidates, 'candidate')} compared by the noise of the outputs on {counted(samples, 'sample')}"


def _gain(winner: TriedTable, other: TriedTable) -> float:
    """By how many dB the winner is quieter on the samples that the other ran."""
    mine, theirs = sum(winner.shares[: len(other.shares)]), sum(other.shares)
    return decibels(mine) - decibels(theirs) if mine > 0 and theirs > 0 else 0.0


def _explained(
    best: TriedTable, judged: tuple[Sequence[TriedTable], TriedTable], tables: Mapping[str, CalibrationTable]
) -> CalibrationTable:
    """The chosen table without shifts; each range with what its choice gained at the output, in dB."""
    tried, winner = judged
    single = winner.table.by_tensor()
    gained = max(_gain(winner, one) for one in tried)

    def explained(entry: TensorRange) -> TensorRange:
        swapped = entry.amax != single[entry.tensor].amax
        gain = best.decibel - winner.decibel if swapped else gained
        alike = all(table.by_tensor()[entry.tensor].amax == entry.amax for table in tables.values())
        if alike:
            return entry
        gain_db = round(gain, 2) if math.isfinite(gain) else entry.gain_db
        return entry.since(chosen_by(len(tried), len(best.shares)), gain_db=gain_db)

    return replace(best.table, ranges=tuple(explained(entry) for entry in best.table.ranges), shifts=())


@dataclass(frozen=True, kw_only=True, slots=True)
class MeanPart:
    """A candidate's part in the mean.

    Attributes:
        name: calibrator, and margin if any.
        weight: all of them add up to 1.
    """

    name: str
    weight: float


def is_quieter(after: TriedTable, before: TriedTable, gain_db: float = 0.0, candidates: int = 1) -> bool:
    """Whether the outputs gain more than `gain_db` on all samples together, and significantly from sample to sample.

    A few samples may hold most of the noise, and any change of the weights gains or loses decibels of their sum. So samples
    are compared in decibels, where each weighs the same. `candidates` is how many changes were compared with `before`.
    """
    gains = after.noise < before.noise and after.decibel - before.decibel > gain_db
    return gains and better(after.levels, before.levels, candidates=candidates)


def weighted(shares: Mapping[str, tuple[float, ...]]) -> tuple[MeanPart, ...]:
    """The candidates that are statistically tied with the quietest, the heaviest first; `shares` of each sample's noise by name."""
    chances = tied(shares)
    whole = sum(chances.values())
    order = sorted(chances, key=lambda name: -chances[name])
    return tuple(MeanPart(name=name, weight=chances[name] / whole) for name in order)


def mean_table(tables: Mapping[str, CalibrationTable], parts: Sequence[MeanPart]) -> CalibrationTable:
    """The table of means, without shifts; a range says of whose, and the heaviest is its calibrator."""
    rows = [tables[one.name].by_tensor() for one in parts]
    weights = [one.weight for one in parts]
    told = "mean of " + ", ".join(f"{one.name} ({100 * one.weight:.0f} %)" for one in parts)

    def mean(entry: TensorRange) -> TensorRange:
        values = np.array([row[entry.tensor].amax for row in rows])
        if (values == values[0]).all():
            return entry
        amax = np.exp(np.average(np.log(values), axis=0, weights=weights))
        note = "; ".join(word for word in (entry.note, told) if word)
        return entry.since(told, amax=tuple(float(one) for one in amax), note=note)

    heaviest = tables[parts[0].name]
    return replace(heaviest, ranges=tuple(mean(entry) for entry in heaviest.ranges), shifts=())
