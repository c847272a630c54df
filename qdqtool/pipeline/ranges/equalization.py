"""Scales channels before calibration, by a method that `weights.equalize` in a recipe names.

    cross-layer   weights before and after an activation get equal ranges per channel; needs no samples
    rotate        the residual stream of a transformer is rotated, so that outlier channels spread (`graph.rotation`)
    smooth        outlier channels of the inputs of matrix products move into their weights (SmoothQuant)
    depthwise     channels of what depthwise convolutions read become equally large (`uneven`)
    awq           weights that meet large inputs are made larger before they are rounded (weight-only formats)

The float network computes an unchanged function with each of these methods. If no constant can take the factors, a
Mul before the layers does. This applies to `awq`, because the Mul costs little beside 4-bit weights; to `depthwise`;
and to `smooth` for TensorRT for RTX, which computes the Mul in the kernel before (`scalable_by_mul`). `suspects`
below describes what `auto` does with outlier channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.moments import Moments, moments, parts
from qdqtool.calibration.rounding import QuantizedLayer, layers_of, output_noise
from qdqtool.calibration.table import constants, formats_of, groups
from qdqtool.core.calibration import INT8_LEVELS, CalibrationTable
from qdqtool.core.findings import Finding
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.protocols import Sample, SampleSource
from qdqtool.core.recipe import AUTO, Recipe
from qdqtool.core.tensors import INT8
from qdqtool.core.weights import ScaledInput, WeightChanges
from qdqtool.graph.equalize import (
    TAIL,
    Scalable,
    behind,
    cross_layer,
    is_free,
    largest_in_front,
    likely_in_front,
    migration,
    protection,
    read_energy,
    rescale_tensor,
    scalables,
    scale_tensors,
    scaled_input,
    shared_scalables,
    weight_noise,
)
from qdqtool.graph.instrumented.probe import watching
from qdqtool.graph.rotation import rotate_streams
from qdqtool.graph.row_sums import TRAILING_SUMS
from qdqtool.graph.view import GraphView, Model
from qdqtool.pipeline.ranges.channels import SAMPLES as FEW
from qdqtool.pipeline.ranges.channels import largest_magnitudes, lost_channels
from qdqtool.pipeline.ranges.samples import fitting_samples
from qdqtool.pipeline.writing import or_without
from qdqtool.runtime.runner import open_model
from qdqtool.trt.ops import ACTIVATIONS, CONV_ACTIVATIONS

if TYPE_CHECKING:
    from calibrators.histogram import Histogram

    Floats = NDArray[np.float64]


# --- uneven ----------------------------------------------------------------------------------------------------------
# `weights.equalize: depthwise`: makes the channels that depthwise convolutions read equally large.
#
# An activation has a single scale for all channels. An ordinary convolution adds its channels, so small channels
# matter little. A depthwise convolution computes every output channel from a single input channel, so the values of a
# small channel that the scale rounds to 0 are lost. Its weights have a scale per channel, so they take any factor
# without loss:
#
#     x -> Q/DQ -> depthwise (w)         x / s -> Q/DQ -> depthwise (w * s)
#
# Every channel then has as many steps as the largest one had, and none has fewer: only the division costs. Constants in front take it behind a
# Relu or a pool; behind a Swish or a Clip, through which factors do not pass, a Mul does. TensorRT for RTX 1.7.1 computes it in the kernel in front, as
# it does the Swish. Classic TensorRT was not seen to: directly behind a convolution and its Clip `auto` leaves the Mul out there, since it would come between
# what is fused, and behind a Swish the outputs must gain much more by it.


DEPTHWISE: Final = "depthwise"
"""Name of this way in a recipe."""
SAMPLES: Final = 32
"""Samples that show how large channels are."""
_FORETOLD: Final = 10 ** (3 / 10)
"""Factor by which equal channels must reduce the noise of all tensors together, as predicted, before `auto`
tries them with another calibration.
"""
_USUAL: Final = 10 ** (-45 / 10)
"""Usual noise after a layer from the scale of an ordinary activation, relative to the signal that the largest values make."""
_PART: Final = 0.1
"""Least noise of the depthwise layers for which equal channels are a gain, relative to the usual noise times
the number of activations.
"""
_STEPS: Final = 4
"""Steps of a factor between a number and its double: as good as exact factors, and unchanged if the last bits
of values differ.
"""
_DEAD: Final = 2.0**-16
"""Share of the largest channel below which a channel counts as empty."""


def candidates(model: Model, placement: Placement) -> tuple[Scalable, ...]:
    """Return the tensors whose readers all have quantized weights. Other tensors gain nothing."""
    weights = {entry.slot.node for entry in placement.quantized if entry.kind is SlotKind.WEIGHT}
    return tuple(
        scalable
        for scalable in scalables(model.view)
        if {reader.node for reader in scalable.readers} <= weights
    )


def scalable_by_mul(model: Model, placement: Placement) -> tuple[Scalable, ...]:
    """Return INT8 inputs of matrix products that only an inserted Mul can scale, if it needs no kernel.

    TensorRT for RTX computes the Mul in the kernel of the activation or normalization before it. The values that
    other nodes read do not change.
    """
    formats, view = formats_of(placement), model.view
    alone = {group[0] for group in groups(placement) if len(group) == 1}
    weights = {entry.slot.node for entry in placement.quantized if entry.kind is SlotKind.WEIGHT}
    low = {
        (entry.tensor, entry.slot.node) for entry in placement.quantized if entry.kind is SlotKind.ACTIVATION
    }
    chosen = []
    for scalable in (*scalables(view), *shared_scalables(view)):
        readers = {reader.node for reader in scalable.readers}
        if (
            not scalable.divided
            and scalable.readers[0].reading.axis == -1
            and scalable.tensor in alone
            and formats.get(scalable.tensor) == INT8
            and readers <= weights
            and {node for tensor, node in low if tensor == scalable.tensor} == readers
            and (is_free(view, scalable) or _is_computed_alone(view, scalable.tensor))
        ):
            chosen.append(scalable)
    return tuple(chosen)


def _is_computed_alone(view: GraphView, tensor: str) -> bool:
    """Return True if a kernel of pointwise operations or of a normalization makes the tensor."""
    maker = view.producer(tensor)
    return maker is not None and maker.op in TRAILING_SUMS | (ACTIVATIONS - CONV_ACTIVATIONS)


def uneven(model: Model, placement: Placement, *, everywhere: bool) -> tuple[Scalable, ...]:
    """Return the INT8 activations with depthwise readers whose channels can be equalized.

    Without `everywhere`, only those that cost no kernel.
    """
    formats = formats_of(placement)
    # a tensor that shares its scale with others would change their channels too
    alone = {group[0] for group in groups(placement) if len(group) == 1}
    return tuple(
        scalable
        for scalable in candidates(model, placement)
        if all(reader.reading.groups > 1 for reader in scalable.readers)
        and scalable.tensor in alone
        and formats.get(scalable.tensor) == INT8
        and (everywhere or is_free(model.view, scalable))
    )


def likely_uneven(model: Model, placement: Placement, *, everywhere: bool) -> tuple[Scalable, ...]:
    """Return the tensors of `uneven`, or () if the model's constants predict little gain from equal channels.

    Channels after random weights are alike, so constants predict nothing.
    """
    chosen = uneven(model, placement, everywhere=everywhere)
    likely: dict[str, NDArray[Any]] = {}
    for scalable in chosen:
        peaks = likely_in_front(model.view, scalable)
        if peaks is None or not peaks.max(initial=0) > 0:
            return chosen
        likely[scalable.tensor] = peaks
    before, after = noise_behind(model, chosen, likely)
    return chosen if before >= _FORETOLD * after else ()


def even_channels(model: Model, chosen: Sequence[Scalable], samples: Sequence[Sample]) -> WeightChanges:
    """Scale the channels of these tensors to equal magnitudes, as measured on the samples.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    peaks = _peaks(model, chosen, samples)
    return scale_tensors(
        model.view,
        {scalable: factors(peaks[scalable.tensor]) for scalable in chosen if peaks[scalable.tensor].any()},
    )


def equalize_if_predicted(
    placed: tuple[Model, Placement],
    chosen: Sequence[Scalable],
    samples: Sequence[Sample],
    table: CalibrationTable,
    peaks: Mapping[str, NDArray[np.float32]],
) -> WeightChanges:
    """Equalize channels as `even_channels` does if much less noise is predicted; otherwise change nothing.

    `peaks` are the largest magnitudes of channels over a few samples. More samples run only if these predict much less noise.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    model, placement = placed
    formats = formats_of(placement)
    few: Mapping[str, NDArray[Any]] = peaks
    if not peaks.keys() >= {scalable.tensor for scalable in chosen}:
        few = _peaks(model, chosen, samples[:FEW])
    before, after = noise_behind(model, chosen, few, table)
    whole = sum(entry.tensor in formats for entry in table.ranges)
    if before < _FORETOLD * after or before < _PART * _USUAL * whole:
        return WeightChanges()
    return even_channels(model, chosen, samples)


def noise_behind(
    model: Model,
    chosen: Sequence[Scalable],
    largest: Mapping[str, NDArray[Any]],
    table: CalibrationTable | None = None,
) -> tuple[float, float]:
    """Return the predicted noise of depthwise layers relative to their signal: now, and with equal channels.

    It is relative to the signal that the largest values make.

    It is the sum over the layers, each relative to its own signal. Without a table, every scale covers the largest value.
    """
    reach = {} if table is None else {entry.tensor: entry.amax[0] for entry in table.ranges}
    before = after = 0.0
    for scalable in chosen:
        peaks = largest[scalable.tensor].astype(np.float64)
        read = np.where(peaks > 0, read_energy(model.view, scalable), 0.0)
        signal = float((read * peaks**2).sum()) * 12 * INT8_LEVELS**2
        if signal > 0:
            each = factors(peaks)
            before += float(read.sum()) * min(reach.get(scalable.tensor, np.inf), peaks.max()) ** 2 / signal
            after += float((read * each**2).sum()) * float((peaks / each).max()) ** 2 / signal
    return before, after


def channel_findings(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    samples: Iterable[Sample],
    peaks: Mapping[str, NDArray[np.float32]] | None = None,
) -> tuple[Finding, ...]:
    """Return the findings of `lost_channels`. Each finding says whether the channels can be made equal."""
    spread = frozenset(scalable.tensor for scalable in uneven(model, placement, everywhere=True))
    return lost_channels(model, placement, table, samples, peaks, spread)


def factors(largest: Floats) -> Floats:
    """Convert largest magnitudes of channels to factors around 1, in steps of a quarter octave; 1 for empty channels."""
    live = largest > _DEAD * largest.max()
    if not live.any():
        return np.ones(largest.shape)
    logs = np.log2(np.where(live, largest, 1.0))
    steps = np.rint(_STEPS * (logs - logs[live].mean())) / _STEPS
    rounded: Floats = np.where(live, 2.0**steps, 1.0)
    return rounded


def _peaks(model: Model, chosen: Sequence[Scalable], samples: Sequence[Sample]) -> Mapping[str, Floats]:
    magnitudes = largest_magnitudes(model, [scalable.tensor for scalable in chosen], samples, len(samples))
    return {name: values.astype(np.float64) for name, values in magnitudes.items()}


# --- equalization ----------------------------------------------------------------------------------------------------


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
    """Return the changes of the method in `weights.equalize`; None without a method, or without changes.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    way = recipe.weights.equalize
    if way == DEPTHWISE:
        spread = uneven(model, placement, everywhere=True)
        return even_channels(model, spread, fitting_samples(model.view, samples, SAMPLES)) if spread else None
    if way == ROTATE:
        return rotate_streams(model.view) or None
    scalable = () if way in {"none", AUTO} else candidates(model, placement)
    if not scalable:
        return None
    return (
        _compute_changes(
            way, model, placement, recipe, scalable, fitting_samples(model.view, samples, _ENOUGH)
        )
        or None
    )


def equalization_or_note(
    model: Model, placement: Placement, recipe: Recipe, samples: SampleSource
) -> tuple[WeightChanges | None, tuple[str, ...]]:
    """Return the result of `equalization`; if a helper model fails, return None and a note.

    The collection that follows reports faults of samples.
    """
    return or_without(
        f"weights.equalize={recipe.weights.equalize}",
        lambda: equalization(model, placement, recipe, samples),
        lambda: None,
    )


def _compute_changes(
    way: str,
    model: Model,
    placement: Placement,
    recipe: Recipe,
    scalable: Sequence[Scalable],
    samples: Sequence[Sample],
) -> WeightChanges:
    """Return the changes of weights that one method of equalization ("cross-layer", "smooth" or "awq") makes."""
    read = {entry.tensor for entry in placement.quantized if entry.kind is SlotKind.ACTIVATION}
    if way == "cross-layer":
        return cross_layer(model.view, scalable)
    matrices = [candidate for candidate in scalable if candidate.readers[0].reading.axis == -1]
    if way == "smooth":
        chosen = [candidate for candidate in matrices if candidate.divided and candidate.tensor in read]
        by_mul = scalable_by_mul(model, placement) if recipe.place.builder.is_rtx else ()
        return _smooth_tensors(model, chosen, by_mul, samples)
    chosen = [candidate for candidate in matrices if candidate.tensor not in read]
    return scale_tensors(
        model.view, _protect_weights(model, placement, recipe, chosen, samples) if chosen else {}
    )


def _smooth_tensors(
    model: Model, chosen: Sequence[Scalable], by_mul: Sequence[Scalable], samples: Sequence[Sample]
) -> WeightChanges:
    """Scale the tensors in `chosen` by SmoothQuant, and scale those in `by_mul` by an inserted Mul.

    The factors for `by_mul` are those with the least predicted noise.
    """
    factors: Factors = {}
    for part in parts([scalable.readers[0] for scalable in chosen]):
        moments_of = moments(model, part, samples)
        for scalable in chosen:
            if scalable.readers[0] in part:
                amax = moments_of[scalable.readers[0].reading].amax[0]
                factors[scalable] = migration(amax, behind(model.view, scalable), _STRENGTH)
    measured = _measure_channels(model, by_mul, samples) if by_mul else {}
    for scalable in by_mul:
        channels = measured[scalable.tensor]
        best = _best(model, scalable, channels, float(channels.peaks.max()), {}, less=1.0)
        if best is not None:
            factors[scalable] = best
    return scale_tensors(model.view, factors)


def _protect_weights(
    model: Model,
    placement: Placement,
    recipe: Recipe,
    chosen: Sequence[Scalable],
    samples: Sequence[Sample],
) -> Factors:
    """Find, for each tensor, the strength of AWQ that leaves the least noise in the layers that read the tensor."""
    table = CalibrationTable(ranges=constants(placement, model.view, recipe.weight_ranges).weights)
    alone = replace(
        placement,
        decisions=tuple(entry for entry in placement.quantized if entry.kind is SlotKind.WEIGHT),
    )
    layers = {layer.product.node: layer for layer in layers_of(model, alone, table, recipe.insert)}
    factors: Factors = {}
    for part in parts([scalable.readers[0] for scalable in chosen]):
        moments_of = moments(model, part, samples)
        for scalable in chosen:
            mine = [layers[reader.node] for reader in scalable.readers if reader.node in layers]
            if scalable.readers[0] in part and len(mine) == len(scalable.readers):
                best = _strongest(model, mine, moments_of[scalable.readers[0].reading], recipe)
                if best is not None:
                    factors[scalable] = best
    return factors


def _strongest(
    model: Model, layers: Sequence[QuantizedLayer], inputs: Moments, recipe: Recipe
) -> NDArray[np.float64] | None:
    """Return the AWQ factors that leave the least noise in the layers; None if scaling does not reduce it."""
    search = recipe.weight_ranges == "mse"
    values = [model.view.constant(layer.product.weight) for layer in layers]
    best, least = None, np.inf
    for strength in (0.0, *_AWQ_STRENGTHS):
        factors = protection(inputs.energy[0], strength)
        noise = sum(
            output_noise(layer, value, inputs, factors, search=search)
            for layer, value in zip(layers, values, strict=True)
            if value is not None
        )
        if noise < least:
            best, least = (None if strength == 0 else factors), noise
    return best


# --- outliers ---------------------------------------------------------------------------------------------------------
# `weights.equalize: auto`: finds outlier channels without a run, and equalizes them if the outputs gain.
#
# One scale for a tensor is set by its largest channel. Where that is many times larger than the others and the layers behind
# hardly use it, as behind the normalizations of large language models, the others are left a few steps. Factors in the
# constants on both sides make the channels alike (`graph.equalize`), and the float network computes the same.
#
# Most networks have no such channels, and equalization makes them noisier, because clipping has already found the best
# compromise. So the search for such channels begins with facts that need no run: the constants before a tensor show
# about how large its channels are, the constants after it show how much each channel counts, and its histogram shows
# the chosen range. Channels are measured on samples only if this predicts much less noise after a layer, or if half of
# the nonzero values are below two steps. Then a calibration of the equalized network is compared with the plain one by
# the outputs.


OUTLIER_SAMPLES: Final = 64
"""Samples that show how large channels are."""
_MUCH_LESS: Final = 10 ** (7 / 10)
"""Factor by which equalizing one tensor must reduce the noise after its layers, as its constants predict. The limit
is between the values of seven networks without outlier channels, and the values of networks whose channels were made
four times larger than the rest.
"""
_MEDIAN_STEPS: Final = 2.0
"""Number of steps below which half of a tensor's values are in a network with outlier channels; in other
networks this median is higher.
"""
_OUTPUTS: Final = 32
"""Outputs of a layer used to estimate how much each channel counts, while a large network is searched."""
_STRENGTHS: Final = (0.3, 0.5, 0.7, 1.0)
"""Shares of the channels' spread that move into the weights, of which the rest comes out."""
_OF_CHANNELS: Final = (0.4, 0.5, 0.6, 0.7, 0.85, 1.0)
"""Shares of the channels' spread that move into the weights, whatever these are. On a trained BERT, one of these
strengths was best for 16 of 18 inputs of layers.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Channels:
    """The largest magnitude and the mean square of each channel of a tensor."""

    peaks: Floats
    energy: Floats


def suspects(
    model: Model, placement: Placement, table: CalibrationTable, histograms: Histograms
) -> tuple[Scalable, ...]:
    """Find the INT8 tensors in which outlier channels may cost much accuracy, in graph order. The network does not run."""
    formats = formats_of(placement)
    ranges = {entry.tensor: entry.amax[0] for entry in table.ranges}
    suspected = []
    for scalable in candidates(model, placement):
        histogram = histograms.tensors.get(scalable.tensor)
        if (
            not scalable.divided
            or formats.get(scalable.tensor) != INT8
            or histogram is None
            or histogram.amax <= 0
        ):
            continue
        reach = ranges[scalable.tensor]
        if _middle(histogram) < _MEDIAN_STEPS * reach / INT8_LEVELS or _is_noise_predicted(
            model, scalable, histogram, reach
        ):
            suspected.append(scalable)
    return tuple(suspected)


def relieve_channels(
    model: Model,
    chosen: Sequence[Scalable],
    table: CalibrationTable,
    samples: Sequence[Sample],
    by_mul: Sequence[Scalable] = (),
) -> WeightChanges:
    """Scale the outlier channels of these tensors, measured on samples, if much less noise is predicted.

    `by_mul` are tensors of `scalable_by_mul`. They are scaled too, if that is predicted to leave less noise without clipping.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    ranges = {entry.tensor: entry.amax[0] for entry in table.ranges}
    values: dict[str, NDArray[Any]] = {}
    inputs: list[ScaledInput] = []
    measured = _measure_channels(model, (*chosen, *by_mul), samples)
    for place, scalable in enumerate((*chosen, *by_mul)):
        # Layers in a row change each other's weights.
        channels = measured[scalable.tensor]
        if place < len(chosen):
            best = _best(model, scalable, channels, ranges[scalable.tensor], values)
        else:
            best = _best(model, scalable, channels, float(channels.peaks.max(initial=0)), values, less=1.0)
        if best is not None:
            rescale_tensor(model.view, values, scalable, best)
            inputs += () if scalable.divided else (scaled_input(scalable, best),)
    return WeightChanges(values=values, scaled=tuple(inputs))


def _is_noise_predicted(model: Model, scalable: Scalable, histogram: Histogram, reach: float) -> bool:
    front = largest_in_front(model.view, scalable)
    top = front.max(initial=0)
    if not np.isfinite(top) or top <= 0:
        return False
    peaks = front * (histogram.amax / top)
    likely = _Channels(peaks=peaks, energy=(peaks / TAIL) ** 2)
    return _best(model, scalable, likely, reach, {}, _OUTPUTS) is not None


def _best(
    model: Model,
    scalable: Scalable,
    channels: _Channels,
    reach: float,
    values: Mapping[str, NDArray[Any]],
    most: int | None = None,
    less: float = _MUCH_LESS,
) -> Floats | None:
    """Return the factors for the channels of a tensor that leave the least noise in its readers; None if they gain too little.

    With factors, the range of the tensor is its largest value. The comparison is with the range that it has now, and
    `less` is the factor by which the noise must fall. With `most`, only about `most` outputs of each layer are
    computed.
    """
    view, peaks = model.view, channels.peaks
    read = np.where(peaks > 0, read_energy(view, scalable, values, most), 0.0)
    weights = behind(view, scalable, values, most)

    def of_values(factors: Floats, amax: float) -> float:
        return float((read * factors**2).sum()) * (amax / INT8_LEVELS) ** 2 / 12

    unchanged = np.ones(scalable.channels)
    now = of_values(unchanged, reach)
    tried = [migration(peaks, weights, strength) for strength in _STRENGTHS]
    live = np.where(weights > 0, 1.0, 0.0)
    tried += [migration(peaks, live, strength) for strength in _OF_CHANNELS]
    after = [of_values(each, float((peaks / each).max(initial=0))) for each in tried]
    # Equalization makes weights noisier: without a gain in the activations, the weights need not be examined.
    if min(after) * less >= now:
        return None
    now += weight_noise(view, scalable, unchanged, channels.energy, values)
    whole = [
        noise + weight_noise(view, scalable, each, channels.energy, values)
        for noise, each in zip(after, tried, strict=True)
    ]
    place = int(np.argmin(whole))
    return tried[place] if whole[place] * less < now else None


def _middle(histogram: Histogram) -> float:
    """Return the median of a histogram's magnitudes without its first bin (zeros); infinite if it has no others."""
    counts = np.cumsum(histogram.counts[1:])
    if not counts.size or not counts[-1]:
        return np.inf
    return float(np.searchsorted(counts, counts[-1] / 2) + 1.5) * histogram.width


def _measure_channels(
    model: Model, chosen: Sequence[Scalable], samples: Sequence[Sample]
) -> dict[str, _Channels]:
    axes = {scalable.tensor: scalable.readers[0].reading.axis for scalable in chosen}
    peaks: dict[str, list[Floats]] = {name: [] for name in axes}
    energy: dict[str, list[Floats]] = {name: [] for name in axes}
    runner = open_model(watching(model, [*axes]), description="float model")
    for sample in samples:
        values = runner.run(sample.feeds)
        for name, axis in axes.items():
            value = np.moveaxis(values[name], axis, 0).astype(np.float64)
            rows = value.reshape(len(value), -1)
            peaks[name].append(np.abs(rows).max(axis=1, initial=0))
            energy[name].append(np.square(rows).mean(axis=1))
    return {
        name: _Channels(peaks=np.max(peaks[name], axis=0), energy=np.mean(energy[name], axis=0))
        for name in axes
    }
