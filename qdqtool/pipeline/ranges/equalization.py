"""Scales channels before calibration, by the way that the recipe names.

    cross-layer   ranges of weights in front of an activation and behind it become alike; needs no samples
    rotate        the residual stream of a transformer is rotated, so that outlier channels spread (`graph.rotation`)
    smooth        outlier channels of what matrix products read go into their weights (SmoothQuant)
    depthwise     channels of what depthwise convolutions read become equally large (`pipeline.ranges.uneven`)
    awq           weights that meet large inputs are made larger before they are rounded (weight-only formats)

The float network computes the same with every one of them. Factors that no constant can take become a Mul in front of the
layers, with `awq`, since beside weights of four bits it costs little, and with `depthwise`. What `auto` does is in `pipeline.ranges.outliers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from qdqtool.calibration.moments import Moments, moments, parts
from qdqtool.calibration.rounding import QuantizedLayer, layers_of, output_noise
from qdqtool.calibration.table import constants
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.core.recipe import AUTO, Recipe
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.equalize import Scalable, behind, cross_layer, migration, protection, scaled
from qdqtool.graph.model import Model
from qdqtool.graph.rotation import rotated
from qdqtool.pipeline.own_models import or_without
from qdqtool.pipeline.ranges.samples import others
from qdqtool.pipeline.ranges.uneven import DEPTHWISE, candidates, evened, uneven
from qdqtool.pipeline.ranges.uneven import SAMPLES as SPREAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROTATE: Final = "rotate"
_STRENGTH: Final = 0.5
"""Strength of SmoothQuant, as the paper sets it for most networks."""
# Exponents of the activations' magnitude; the paper searches 20 between 0 and 1.
_AWQ_STRENGTHS: Final = tuple(float(share) for share in np.linspace(0.1, 1.0, 10))
_ENOUGH: Final = 64
"""Samples that show which channels are large."""

Factors = dict[Scalable, "NDArray[np.float64]"]


def equalization(
    model: Model,
    placement: Placement,
    recipe: Recipe,
    samples: SampleSource,
) -> WeightChanges | None:
    """Return the changes of the way that `weights.equalize` names; None if it names none, or changes nothing.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    way = recipe.weights.equalize
    if way == DEPTHWISE:
        spread = uneven(model, placement, everywhere=True)
        return evened(model, spread, others(model.view, samples, SPREAD)) if spread else None
    if way == ROTATE:
        return rotated(model.view) or None
    found = () if way in {"none", AUTO} else candidates(model, placement)
    if not found:
        return None
    return _made(way, model, placement, recipe, found, others(model.view, samples, _ENOUGH)) or None


def equalization_or_note(
    model: Model, placement: Placement, recipe: Recipe, samples: SampleSource
) -> tuple[WeightChanges | None, tuple[str, ...]]:
    """Return `equalization`, or None and a note if a helper model fails.

    The collection that follows reports faults of samples.
    """
    return or_without(
        f"weights.equalize={recipe.weights.equalize}",
        lambda: equalization(model, placement, recipe, samples),
        lambda: None,
    )


def _made(
    way: str,
    model: Model,
    placement: Placement,
    recipe: Recipe,
    found: Sequence[Scalable],
    samples: Sequence[Sample],
) -> WeightChanges:
    """Return the changes of one way."""
    read = {entry.tensor for entry in placement.quantized if entry.kind is SlotKind.ACTIVATION}
    if way == "cross-layer":
        return cross_layer(model.view, found)
    matrices = [one for one in found if one.readers[0].reading.axis == -1]
    if way == "smooth":
        chosen = [one for one in matrices if one.divided and one.tensor in read]
        return _smoothed(model, chosen, samples)
    chosen = [one for one in matrices if one.tensor not in read]
    return scaled(model.view, _protected(model, placement, recipe, chosen, samples) if chosen else {})


def _smoothed(model: Model, chosen: Sequence[Scalable], samples: Sequence[Sample]) -> WeightChanges:
    factors: Factors = {}
    for part in parts([one.readers[0] for one in chosen]):
        seen = moments(model, part, samples)
        for one in chosen:
            if one.readers[0] in part:
                amax = seen[one.readers[0].reading].amax[0]
                factors[one] = migration(amax, behind(model.view, one), _STRENGTH)
    return scaled(model.view, factors)


def _protected(
    model: Model,
    placement: Placement,
    recipe: Recipe,
    chosen: Sequence[Scalable],
    samples: Sequence[Sample],
) -> Factors:
    """Find, for every tensor, the strength of AWQ with the least noise of the layers that read the tensor."""
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
    model: Model, layers: Sequence[QuantizedLayer], seen: Moments, recipe: Recipe
) -> NDArray[np.float64] | None:
    """Return the factors with the least noise; None if all factors are worse than none."""
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
