"""`calibrate.method: auto`: the calibrator is chosen by what comes out of the network, not by what goes into a tensor.

No calibrator is best on every network: clipping that quietens each tensor can silence the one channel a detector
lives on. Which one is right shows at the outputs. All candidate tables come from one collection, and one session runs
them all: ranges and biases are inputs of the Q/DQ model (`graph.tunable`), weights stay constants.

1. Every competing calibrator is run on the choosing samples; the quietest table wins. The measure is the noise of the
   outputs relative to their signal, each output weighing the same.
2. As far as the budget goes, each quarter of the network, in graph order, is tried with the runner-up's ranges and
   keeps them where the output gains. The mixture counts only if it is quieter on the other samples too, which took
   no part: a gain that does not repeat is chance.

Where biases are going to be corrected the candidates are judged with corrected biases, since correction takes back
much of what clipping does to the means. The shifts are those of each layer's own error (`graph.layer_errors`), which
one session gives for all layers: on mobilenet_v1_025 they order the calibrators as the full correction does, and
without them the order is another one (max 11.90 dB and mse 11.95 plain, 18.36 and 18.19 corrected).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.table import Constants, groups, make_tables, working_methods
from qdqtool.core.calibration import CALIBRATORS, CalibrationTable, TensorRange
from qdqtool.core.placement import Placement
from qdqtool.core.recipe import AUTO, CalibrationOptions
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.model import Model
from qdqtool.pipeline.trial import RUNS, Budget, Candidate, Reference, Trial

_BLOCKS: Final = 4
_WORTHWHILE: Final = 10 ** (0.2 / 10)
"""How many times quieter a mixture must be, 0.2 dB: on a ViT one that gained less here lost as much elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What was chosen, and how noisy it makes the outputs.

    Attributes:
        table: without bias shifts.
        noise: share of noise on the choosing samples, with the shifts that the choice saw.
        checked: the same on the checking samples.
    """

    table: CalibrationTable
    noise: float
    checked: float


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

    Overrides and factors of the recipe hold in every candidate. Biases are not shifted yet: `correct_biases` comes
    after. At most 192 inferences are spent.

    Raises:
        UsageError, InputFileError: as `make_tables` and the runners.
    """
    methods = competing()
    choices = [options.model_copy(update={"method": method}) for method in methods]
    made = make_tables(collected[0], placement, collected[1], choices)
    tables = {method: replace(table, weights=weights) for method, table in zip(methods, made, strict=True)}
    trial = Trial(model, placement, tables[methods[0]], options, reference, budget)
    if not groups(placement):
        # Weights alone, or nothing: no calibrator has a say.
        only = trial.candidate(methods[0], tables[methods[0]])
        return Judged(table=replace(only.table, shifts=()), noise=only.noise, checked=trial.checked(only))
    candidates = sorted(
        (trial.candidate(method, table) for method, table in tables.items()), key=lambda one: one.noise
    )
    winner = candidates[0]
    mixed = _mixture(trial, winner, candidates[1], groups(placement)) if len(candidates) > 1 else winner
    worst = candidates[-1]
    table = _explained(mixed, winner, worst, {entry.method: entry.table for entry in candidates})
    return Judged(table=table, noise=mixed.noise, checked=trial.checked(mixed))


def _mixture(trial: Trial, winner: Candidate, other: Candidate, tied: Sequence[tuple[str, ...]]) -> Candidate:
    """The winner with the other's ranges in those blocks of the network where that pays on all samples."""
    best = winner
    for block in _blocks(trial, tied):
        if trial.budget.spent + len(trial.reference.choosing) + 3 * len(trial.reference.checking) > RUNS:
            break
        table = _swapped(best.table, other.table, block)
        if table.ranges == best.table.ranges:
            continue
        noise = trial.noise(table, trial.reference.choosing)
        if noise * _WORTHWHILE < best.noise:
            best = Candidate(method=AUTO, table=table, noise=noise)
    if best is winner or not trial.reference.checking:
        return winner
    mixed, single = (trial.noise(one.table, trial.reference.checking) for one in (best, winner))
    return best if mixed * _WORTHWHILE < single else winner


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
    best: Candidate, winner: Candidate, worst: Candidate, tables: Mapping[str, CalibrationTable]
) -> CalibrationTable:
    """The chosen table without shifts; each range with what its choice gained at the output, in dB."""
    single = winner.table.by_tensor()

    def explained(entry: TensorRange) -> TensorRange:
        mine = single[entry.tensor]
        swapped = entry.amax != mine.amax
        gain = best.decibel - winner.decibel if swapped else winner.decibel - worst.decibel
        alike = all(table.by_tensor()[entry.tensor].amax == entry.amax for table in tables.values())
        return entry if alike or not math.isfinite(gain) else replace(entry, gain_db=round(gain, 2))

    return replace(best.table, ranges=tuple(explained(entry) for entry in best.table.ranges), shifts=())
