"""Scales channels before calibration where that makes the network's outputs less noisy.

    cross-layer   ranges of weights in front of an activation and behind it become alike; needs no samples
    smooth        outlier channels of what matrix products read go into their weights (SmoothQuant)
    awq           weights that meet large inputs are made larger before they are rounded (weight-only formats)
    auto          the first of these that gains more than 0.3 dB at the outputs, if any does

The float network computes the same with every one of them. Factors that no constant can take become a Mul in front of the
layers, with `awq` only: beside weights of four bits it costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qdqtool.calibration.collect import collect
from qdqtool.calibration.moments import Moments, moments, parts
from qdqtool.calibration.rounding import Layer, layers_of, output_noise
from qdqtool.calibration.table import constants, make_table
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.core.recipe import AUTO, Recipe
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.equalize import Scalable, behind, cross_layer, migration, protection, scalables, scaled
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.changes import with_changes
from qdqtool.pipeline.trial import Budget, Reference, Trial, decibels, others

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAIN_DB: Final = 0.3
"""What it must gain, as rounding must."""
STRENGTHS: Final = (0.3, 0.5, 0.7)
"""Shares of SmoothQuant that are tried; the paper takes 0.5 for most networks."""
# Exponents of the activations' magnitude; the paper searches 20 between 0 and 1.
_AWQ_STRENGTHS: Final = tuple(float(share) for share in np.linspace(0.1, 1.0, 10))
_ENOUGH: Final = 64
"""Samples that show which channels are large."""
_FEWEST: Final = 8
"""Samples below which a choice would be chance."""

OnProgress = Callable[[int, "int | None"], None]
Factors = dict[Scalable, "NDArray[np.float64]"]


def equalization(
    model: Model,
    placement: Placement,
    recipe: Recipe,
    samples: SampleSource,
    on_progress: OnProgress | None = None,
) -> WeightChanges | None:
    """The changes by the recipe's `weights.equalize`; None where there are none.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    wanted = recipe.weights.equalize
    found = _candidates(model, placement)
    if wanted == "none" or not found:
        return None
    taken = others(model.view, samples, _ENOUGH)
    if wanted != AUTO:
        return next(iter(_made(wanted, model, placement, recipe, found, taken)), None)
    if len(samples) <= _FEWEST or not samples.meaningful:
        return None
    budget = Budget(on_progress=on_progress)
    reference = Reference(model, samples, budget, bias=recipe.calibrate.bias == "correct")
    plain = _noise(model, placement, recipe, reference, None)
    best, least = None, plain
    for way in ("cross-layer", "smooth", "awq"):
        for changes in _made(way, model, placement, recipe, found, taken):
            noise = _noise(model, placement, recipe, reference, changes)
            if decibels(noise[0]) > decibels(least[0]) + GAIN_DB and noise[1] < least[1]:
                best, least = changes, noise
    return best


def _candidates(model: Model, placement: Placement) -> tuple[Scalable, ...]:
    """Tensors whose readers all have quantized weights: elsewhere there is nothing to gain."""
    weights = {entry.slot.node for entry in placement.quantized if entry.kind is SlotKind.WEIGHT}
    return tuple(one for one in scalables(model.view) if {reader.node for reader in one.readers} <= weights)


def _made(
    way: str,
    model: Model,
    placement: Placement,
    recipe: Recipe,
    found: Sequence[Scalable],
    samples: Sequence[Sample],
) -> Iterable[WeightChanges]:
    """The changes of one way: several where its strength has to be tried."""
    read = {entry.tensor for entry in placement.quantized if entry.kind is SlotKind.ACTIVATION}
    if way == "cross-layer":
        changes = cross_layer(model.view, found)
        return (changes,) if changes else ()
    matrices = [one for one in found if one.readers[0].reading.axis == -1]
    if way == "smooth":
        chosen = [one for one in matrices if one.divided and one.tensor in read]
        return _smoothed(model, chosen, samples) if chosen else ()
    chosen = [one for one in matrices if one.tensor not in read]
    factors = _protected(model, placement, recipe, chosen, samples) if chosen else {}
    return (scaled(model.view, factors),) if factors else ()


def _smoothed(model: Model, chosen: Sequence[Scalable], samples: Sequence[Sample]) -> Iterable[WeightChanges]:
    amax: dict[Scalable, NDArray[Any]] = {}
    for part in parts([one.readers[0] for one in chosen]):
        seen = moments(model, part, samples)
        amax |= {one: seen[one.readers[0].reading].amax[0] for one in chosen if one.readers[0] in part}
    for strength in (0.5, *(share for share in STRENGTHS if share != 0.5)):
        factors = {one: migration(found, behind(model.view, one), strength) for one, found in amax.items()}
        yield scaled(model.view, factors)


def _protected(
    model: Model,
    placement: Placement,
    recipe: Recipe,
    chosen: Sequence[Scalable],
    samples: Sequence[Sample],
) -> Factors:
    """AWQ: for every tensor the strength that makes the noise of the layers behind it smallest."""
    table = CalibrationTable(ranges=constants(placement, model.view, recipe.weight_ranges).weights)
    alone = replace(
        placement,
        decisions=tuple(entry for entry in placement.quantized if entry.kind is SlotKind.WEIGHT),
    )
    layers = {layer.product.node: layer for layer in layers_of(model, alone, table, recipe.insert)}
    factors: Factors = {}
    for part in parts([one.readers[0] for one in chosen]):
        seen = moments(model, part, samples)
        for one in chosen:
            mine = [layers[reader.node] for reader in one.readers if reader.node in layers]
            if one.readers[0] in part and len(mine) == len(one.readers):
                best = _strongest(model, mine, seen[one.readers[0].reading], recipe)
                if best is not None:
                    factors[one] = best
    return factors


def _strongest(
    model: Model, layers: Sequence[Layer], seen: Moments, recipe: Recipe
) -> NDArray[np.float64] | None:
    """The factors with the least noise; None where none are better."""
    search = recipe.weight_ranges == "mse"
    values = [model.view.constant(layer.product.weight) for layer in layers]
    best, least = None, np.inf
    for strength in (0.0, *_AWQ_STRENGTHS):
        factors = protection(seen.energy[0], strength)
        noise = sum(
            output_noise(layer, value, seen, factors, search=search)
            for layer, value in zip(layers, values, strict=True)
            if value is not None
        )
        if noise < least:
            best, least = (None if strength == 0 else factors), noise
    return best


def _noise(
    model: Model,
    placement: Placement,
    recipe: Recipe,
    reference: Reference,
    changes: WeightChanges | None,
) -> tuple[float, float]:
    """Shares of noise on the choosing and on the checking samples, calibrated on both."""
    changed = with_changes(model, changes) if changes else model
    options = recipe.calibrate
    histograms = collect(changed, placement, reference.source)
    table = make_table(histograms, placement, changed.view, options)
    judge = reference.of(changed) if changes and reference.layers else reference
    trial = Trial(changed, placement, table, judge, Budget())
    judged = trial.candidate("", table, judge.choosing)
    return judged.noise, trial.checked(judged)
