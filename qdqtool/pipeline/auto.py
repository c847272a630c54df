"""`calibrate.method: auto`: the calibrator is chosen by what comes out of the network, not by what goes into a tensor.

No calibrator is best on every network: clipping that quietens each tensor can silence the one channel a detector
lives on. Which one is right shows at the outputs. All candidate tables come from one collection, and one session runs
them all: ranges and biases are inputs of the Q/DQ model (`graph.tunable`), weights stay constants.

1. Every competing calibrator is run on 8 samples. Where the difference to the best says that more samples could gain no
   0.05 dB, it is out; the others are judged on all 32, and the quietest table wins. The measure is the noise of the outputs
   relative to their signal, each output weighing the same.
2. Where all samples leave two apart as little as that, and as far as the budget goes, each quarter of the network, in graph order, is tried with the
   runner-up's ranges and keeps them where the output gains. The mixture counts only if it is quieter on other samples
   too, which took no part: a gain that does not repeat is chance.

Where biases are going to be corrected the candidates are judged with corrected biases, since correction takes back
much of what clipping does to the means (on mobilenet_v1_025 max 11.90 dB and mse 11.95 plain, 18.36 and 18.19 corrected).
A model that takes batches corrects itself while it runs; elsewhere the shifts are those of each layer's own error
(`graph.layer_errors`), which order the calibrators as the full correction does.
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
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import AUTO, CalibrationOptions
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.model import Model
from qdqtool.pipeline.trial import Budget, Candidate, Reference, Trial

_BLOCKS: Final = 4
_FINALISTS: Final = 3
_REGRET: Final = 10 ** (0.05 / 10) - 1
"""What leaving a calibrator out may cost, as a share of the best one's noise, in the mean over what chance may have done."""
_FEWEST: Final = 3
"""Samples below which none is out."""
_WORTHWHILE: Final = 10 ** (0.2 / 10)
"""How many times quieter a mixture must be, 0.2 dB: on a ViT one that gained less here lost as much elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What was chosen, and how noisy it makes the outputs.

    Attributes:
        table: without bias shifts.
        best: the same with the shifts that the choice saw, and its noise on the samples.
        trial: the session that ran it.
        samples: what `best` was judged on; all that fit into one run where biases are corrected.
    """

    table: CalibrationTable
    best: Candidate
    trial: Trial
    samples: tuple[Sample, ...]


def competing() -> tuple[str, ...]:
    """The calibrators that are compared, in alphabetical order; broken ones of other distributions are left out."""
    return tuple(name for name in working_methods() if CALIBRATORS.load(name).competes)


def choose(
    model: Model,
    placement: Placement,
    collected: tuple[Histograms, Constants],
    options: CalibrationOptions,
    reference: Reference,
    budget: Budget,
    weights: WeightChanges | None = None,
) -> Judged:
    """The table whose model's outputs are the least noisy; each range says its calibrator and what it gained.

    `weights` are rounded in every candidate as it says.

    Overrides and factors of the recipe hold in every candidate. Biases are not shifted yet: `shifted` comes after. At
    most 192 inferences are spent.

    Raises:
        UsageError, InputFileError: as `make_tables` and the runners.
    """
    methods = competing()
    choices = [options.model_copy(update={"method": method}) for method in methods]
    made = make_tables(collected[0], placement, collected[1], choices)
    tables = {method: replace(table, weights=weights) for method, table in zip(methods, made, strict=True)}
    trial = Trial(model, placement, tables[methods[0]], reference, budget)
    # Calibrators that agree on every range are one candidate; without activations all are: none has a say.
    distinct = {
        tuple(entry.amax for entry in table.ranges): method for method, table in reversed(tables.items())
    }
    tried = _judged(
        trial, {method: tables[method] for method in sorted(distinct.values())}, reference.choosing
    )
    left = [tried[0], *(one for one in tried[1:] if not _is_out(one, tried[0]))][:_FINALISTS]
    if len(left) == 1 and not reference.together:
        table = _explained(left[0], (tried, left[0]), tables)
        return Judged(table=table, best=left[0], trial=trial, samples=reference.choosing)
    finalists = _judged(trial, {one.method: tables[one.method] for one in left}, trial.at_once())
    winner = finalists[0]
    alike = len(finalists) > 1 and not _is_out(finalists[1], winner)
    mixed = _mixture(trial, winner, finalists[1], groups(placement)) if alike else winner
    table = _explained(mixed, (tried, winner), tables)
    return Judged(table=table, best=mixed, trial=trial, samples=trial.at_once())


def _judged(
    trial: Trial, tables: Mapping[str, CalibrationTable], samples: Sequence[Sample]
) -> list[Candidate]:
    """The tables on these samples, the quietest first."""
    found = (trial.candidate(method, table, samples) for method, table in tables.items())
    return sorted(found, key=lambda one: one.noise)


def _is_out(one: Candidate, best: Candidate) -> bool:
    """Whether more samples would hardly be worth their price: what it may still gain by them is next to nothing.

    The difference in noise is known up to its standard error s over the samples. With z = difference / s, being quieter
    after all is worth s (phi(z) - z Phi(-z)) in the mean (the loss function of the normal distribution).
    """
    moved = np.subtract(one.shares, best.shares)
    if len(moved) < _FEWEST:
        return False
    error = float(moved.std(ddof=1)) * math.sqrt(len(moved))
    if error == 0:
        return True
    z = float(moved.sum()) / error
    density, beyond = math.exp(-z * z / 2) / math.sqrt(2 * math.pi), math.erfc(z / math.sqrt(2)) / 2
    return error * (density - z * beyond) <= _REGRET * best.noise


def _mixture(trial: Trial, winner: Candidate, other: Candidate, tied: Sequence[tuple[str, ...]]) -> Candidate:
    """The winner with the other's ranges in those blocks of the network where that pays on all samples."""
    choosing, checking = trial.reference.choosing, trial.reference.checking
    reserved = len(choosing) + 2 * len(checking) + len(trial.at_once())
    if not checking or trial.budget.spent + 2 * len(choosing) + reserved > trial.budget.most:
        return winner
    first = best = trial.candidate(winner.method, winner.table, choosing)
    for block in _blocks(trial, tied):
        if trial.budget.spent + reserved > trial.budget.most:
            break
        table = _swapped(best.table, other.table, block)
        if table.ranges == best.table.ranges:
            continue
        found = trial.candidate(AUTO, table, choosing)
        if found.noise * _WORTHWHILE < best.noise:
            best = found
    if best is first:
        return winner
    mixed, single = (trial.checked(one) for one in (best, winner))
    return trial.candidate(AUTO, best.table, trial.at_once()) if mixed * _WORTHWHILE < single else winner


def _blocks(trial: Trial, tied: Sequence[tuple[str, ...]]) -> list[frozenset[str]]:
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
    ranges = tuple(theirs[entry.tensor] if entry.tensor in tensors else entry for entry in table.ranges)
    return replace(table, ranges=ranges)


def _explained(
    best: Candidate, judged: tuple[Sequence[Candidate], Candidate], tables: Mapping[str, CalibrationTable]
) -> CalibrationTable:
    """The chosen table without shifts; each range with what its choice gained at the output, in dB."""
    tried, winner = judged
    single = winner.table.by_tensor()
    mine = next(one for one in tried if one.method == winner.method)
    most = tried[-1]

    def explained(entry: TensorRange) -> TensorRange:
        swapped = entry.amax != single[entry.tensor].amax
        gain = best.decibel - winner.decibel if swapped else max(0.0, mine.decibel - most.decibel)
        alike = all(table.by_tensor()[entry.tensor].amax == entry.amax for table in tables.values())
        return entry if alike or not math.isfinite(gain) else replace(entry, gain_db=round(gain, 2))

    return replace(best.table, ranges=tuple(explained(entry) for entry in best.table.ranges), shifts=())
