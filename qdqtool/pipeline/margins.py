"""Ranges of few samples are too narrow for the next ones: how much wider they should be is measured on samples they did not see.

The largest of 16 or 64 samples is not the largest that will come, and every calibrator sees what it clips least on the samples
that it was given. So the samples are parted in four: ranges that three parts give, as they are and 12 and 25 % wider, run the
fourth, and the margin under which all four parts together come out quieter is taken. It must be better without the sample, too,
that is noisiest without it: a single sample beyond all others says little of the next ones, and stays in the ranges anyway.

Where many samples calibrate nothing is tried, for their largest says enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.bounds import Bound
from qdqtool.calibration.collect import Collection
from qdqtool.calibration.histograms import Histograms, merged
from qdqtool.calibration.pool import CollectOptions
from qdqtool.calibration.samples.conform import fixed_batch
from qdqtool.calibration.span import NOTHING, Span
from qdqtool.calibration.table import Constants, groups, make_tables
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample
from qdqtool.core.recipe import AUTO, CalibrationOptions
from qdqtool.graph.model import Model
from qdqtool.pipeline.auto import Judged
from qdqtool.pipeline.trial import PASSES, TAKEN, Reference, is_small
from qdqtool.platform import give_back

MARGINS: Final = (1.12, 1.25)
"""By what ranges are multiplied, each tried after the one before it; those that are half as wide again lost to these on four networks."""
_FOLDS: Final = 4
"""Parts of the samples: of two each would see too few to say what all of them miss."""
_FEWEST, _MOST = 8, 128
"""Samples between which the largest seen is one that more samples would exceed, and can be told to be."""
_WORTHWHILE: Final = 10 ** (0.2 / 10)
"""How many times quieter a margin must be."""
_PASSES: Final = 2 + len(MARGINS)
"""Inferences per sample: one that counts magnitudes, one for each margin and for none."""


def parts_of(
    model: Model, placement: Placement, reference: Reference, options: CalibrationOptions, whole: int
) -> tuple[Histograms, ...]:
    """The histograms of each part of the samples, in a session that is closed before others open; () where no margin is tried.

    `whole` is how many samples calibrated. Ranges that the recipe sets, by name or by a factor, are left to it.

    Raises:
        InputFileError: as the runners.
    """
    samples = reference.samples
    if len(samples) != whole or options.overrides or options.shrink or not _is_affordable(model, whole):
        return ()
    collection = Collection(model, placement, reference.source, options=CollectOptions(on_nan="skip"))
    spans = (Span(shard=part, shards=_FOLDS, total=whole) for part in range(_FOLDS))
    found = tuple(collection.run(span) for span in spans)
    del collection
    give_back()
    return found


def with_margin(
    judged: Judged,
    seen: tuple[Histograms, ...],
    placement: Placement,
    known: Constants,
    options: CalibrationOptions,
) -> Judged:
    """The chosen table with its activations' ranges as much wider as samples that they did not see ask for; often none.

    `seen` are the histograms that `parts_of` gave.

    Raises:
        InputFileError: as the runners.
    """
    if not seen:
        return judged
    samples = judged.trial.reference.samples
    parts = [_fold(judged, seen, placement, (known, options), part) for part in range(_FOLDS)]

    def shares(margin: float) -> NDArray[np.float64]:
        """What each sample adds to the noise under ranges that it had no part in."""
        judgements = []
        for part, table in enumerate(parts):
            unseen, rest = _parted(samples, part)
            wider = _wider(table, placement, known.bounds, margin)
            judgements.append(judged.trial.candidate(AUTO, wider, unseen, among=(*unseen, *rest)))
        return np.concatenate([one.shares for one in judgements])

    taken, least = 1.0, shares(1.0)
    for margin in MARGINS:
        found = shares(margin)
        if _is_quieter(found, least):
            taken, least = margin, found
    if taken == 1.0:
        return judged
    wider = _wider(judged.table, placement, known.bounds, taken)
    best = judged.trial.candidate(AUTO, wider, judged.samples)
    return replace(judged, table=wider, best=best)


def _is_affordable(model: Model, whole: int) -> bool:
    """Whether samples are few and their inferences cheap, or so few that all together stay within what a choice may cost."""
    if not _FEWEST <= whole <= _MOST or fixed_batch(model.view.inputs) not in {None, 1}:
        return False
    return is_small(model.view) or (PASSES + _PASSES) * whole <= PASSES * TAKEN


def _fold(
    judged: Judged,
    seen: tuple[Histograms, ...],
    placement: Placement,
    how: tuple[Constants, CalibrationOptions],
    part: int,
) -> CalibrationTable:
    """The chosen table as the samples of all other parts give it."""
    known, options = how
    others = [one for number, one in enumerate(seen) if number != part]
    histograms = replace(
        others[0],
        tensors=merged(one.tensors for one in others),
        samples=sum(one.samples for one in others),
        span=NOTHING,
    )
    choices = [options.model_copy(update={"method": method}) for method in judged.singles]
    made = make_tables(histograms, placement, known, choices)
    by_method = dict(zip(judged.singles, (table.by_tensor() for table in made), strict=True))

    singles = {method: table.by_tensor() for method, table in judged.singles.items()}
    activations = {name for group in groups(placement) for name in group}

    def seen_by_others(entry: TensorRange) -> TensorRange:
        if entry.tensor not in activations:
            return entry
        same = (name for name, one in singles.items() if one[entry.tensor].amax == entry.amax)
        method = next(same, None)
        return entry if method is None else by_method[method][entry.tensor]

    return replace(judged.table, ranges=tuple(seen_by_others(entry) for entry in judged.table.ranges))


def _parted(samples: tuple[Sample, ...], part: int) -> tuple[tuple[Sample, ...], tuple[Sample, ...]]:
    """One part of the samples, from all over them, and the others."""
    rest = tuple(sample for number, sample in enumerate(samples) if number % _FOLDS != part)
    return samples[part::_FOLDS], rest


def _is_quieter(found: NDArray[np.float64], least: NDArray[np.float64]) -> bool:
    """Whether enough of the noise goes, with and without the sample that had most of it."""
    noisiest = int(least.argmax())
    pairs = ((found, least), (np.delete(found, noisiest), np.delete(least, noisiest)))
    return all(_WORTHWHILE * float(one.sum()) < float(other.sum()) for one, other in pairs)


def _wider(
    table: CalibrationTable, placement: Placement, bounds: Mapping[str, Bound], margin: float
) -> CalibrationTable:
    """Activations' ranges times the margin; none beyond what the values can reach, and none of a tensor that never fired."""
    if margin == 1.0:
        return table
    ranges = table.by_tensor()
    wider: dict[str, TensorRange] = {}
    for group in groups(placement):
        limits = [bounds[name].amax if name in bounds else math.inf for name in group]
        for name in group:
            entry = ranges[name]
            amax = max(entry.amax[0], min(entry.amax[0] * margin, max(limits)))
            if amax > entry.amax[0] and (entry.low or entry.high):
                note = "; ".join(word for word in (entry.note, f"times {margin:g}: few samples") if word)
                wider[name] = replace(entry, amax=(amax,), note=note)
    return replace(table, ranges=tuple(wider.get(entry.tensor, entry) for entry in table.ranges))
