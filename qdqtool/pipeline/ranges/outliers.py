"""`weights.equalize: auto`: finds outlier channels without a run, and equalizes them if the outputs gain.

One scale for a tensor is set by its largest channel. Where that is many times larger than the others and the layers behind
hardly use it, as behind the normalizations of large language models, the others are left a few steps. Factors in the
constants on both sides make the channels alike (`graph.equalize`), and the float network computes the same.

Most networks have no such channels, and equalized all the same they get noisier: clipping has found the
balance already. So whether there are any is asked first, of what is known without a run: the constants in front of a tensor
tell about how large its channels are, those behind it how much each counts, and its histogram how far the chosen
range reaches. Only where these foretell much less noise behind a layer, or where half of the values that fire lie below two
steps, the channels are measured on samples, and a calibration of the equalized network is compared with the plain
one by the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qdqtool.calibration.histograms import Histograms
from qdqtool.calibration.table import formats_of
from qdqtool.core.calibration import INT8_LEVELS, CalibrationTable
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Sample
from qdqtool.core.quant_format import INT8
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.equalize import (
    TAIL,
    Scalable,
    behind,
    largest_in_front,
    migration,
    read_energy,
    rescaled,
    weight_noise,
)
from qdqtool.graph.instrumented.probe import watching
from qdqtool.graph.model import Model
from qdqtool.pipeline.ranges.equalization import candidates
from qdqtool.runtime.runner import open_model

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from calibrators.histogram import Histogram

    Floats = NDArray[np.float64]

SAMPLES: Final = 64
"""Samples that show how large channels are."""
_FORETOLD: Final = 10 ** (7 / 10)
"""Factor by which equalizing one tensor must reduce the noise after its layers, as its constants predict. It
is between the values of seven networks without outlier channels and those of networks changed to have
channels four times larger than the others.
"""
_STEPS: Final = 2.0
"""Number of steps below which half of a tensor's values are in a network with outlier channels; in other
networks this median is higher.
"""
_OUTPUTS: Final = 32
"""Outputs of a layer used to estimate how much each channel counts, while a large network is searched."""
_STRENGTHS: Final = (0.3, 0.5, 0.7, 1.0)
"""Shares of the channels' spread that move into the weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Channels:
    """The largest magnitude and the mean square of each channel of a tensor."""

    peaks: Floats
    energy: Floats


def suspects(
    model: Model, placement: Placement, table: CalibrationTable, histograms: Histograms
) -> tuple[Scalable, ...]:
    """Find the INT8 tensors in which outlier channels may cost much, in graph order, without running the network."""
    formats = formats_of(placement)
    ranges = {entry.tensor: entry.amax[0] for entry in table.ranges}
    found = []
    for one in candidates(model, placement):
        seen = histograms.tensors.get(one.tensor)
        if not one.divided or formats.get(one.tensor) != INT8 or seen is None or seen.amax <= 0:
            continue
        reach = ranges[one.tensor]
        if _middle(seen) < _STEPS * reach / INT8_LEVELS or _is_foretold(model, one, seen, reach):
            found.append(one)
    return tuple(found)


def relieved(
    model: Model, chosen: Sequence[Scalable], table: CalibrationTable, samples: Sequence[Sample]
) -> WeightChanges:
    """Scale the channels of these tensors, measured on the samples, if that is predicted to leave much less noise.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    ranges = {entry.tensor: entry.amax[0] for entry in table.ranges}
    values: dict[str, NDArray[Any]] = {}
    seen = _measured(model, chosen, samples)
    for one in chosen:
        # Layers in a row change each other's weights.
        best = _best(model, one, seen[one.tensor], ranges[one.tensor], values)
        if best is not None:
            rescaled(model.view, values, one, best)
    return WeightChanges(values=values)


def _is_foretold(model: Model, one: Scalable, seen: Histogram, reach: float) -> bool:
    front = largest_in_front(model.view, one)
    top = front.max(initial=0)
    if not np.isfinite(top) or top <= 0:
        return False
    peaks = front * (seen.amax / top)
    likely = _Channels(peaks=peaks, energy=(peaks / TAIL) ** 2)
    return _best(model, one, likely, reach, {}, _OUTPUTS) is not None


def _best(
    model: Model,
    one: Scalable,
    seen: _Channels,
    reach: float,
    values: Mapping[str, NDArray[Any]],
    most: int | None = None,
) -> Floats | None:
    """Return the factors with the least noise after a tensor if its range is its largest value; None if they gain too little.

    The comparison is with the range that it has now. With `most`, about so many outputs of each layer tell what it reads.
    """
    view, peaks = model.view, seen.peaks
    read = np.where(peaks > 0, read_energy(view, one, values, most), 0.0)
    weights = behind(view, one, values, most)

    def of_values(factors: Floats, amax: float) -> float:
        return float((read * factors**2).sum()) * (amax / INT8_LEVELS) ** 2 / 12

    same = np.ones(one.channels)
    now = of_values(same, reach)
    tried = [migration(peaks, weights, strength) for strength in _STRENGTHS]
    after = [of_values(each, float((peaks / each).max(initial=0))) for each in tried]
    # Weights get noisier, so what does not gain without them need not look at them.
    if min(after) * _FORETOLD >= now:
        return None
    now += weight_noise(view, one, same, seen.energy, values)
    whole = [
        noise + weight_noise(view, one, each, seen.energy, values)
        for noise, each in zip(after, tried, strict=True)
    ]
    place = int(np.argmin(whole))
    return tried[place] if whole[place] * _FORETOLD < now else None


def _middle(seen: Histogram) -> float:
    """Return the median of the magnitudes above the first bin, which contains zeros; infinite if there are none."""
    counts = np.cumsum(seen.counts[1:])
    if not counts.size or not counts[-1]:
        return np.inf
    return float(np.searchsorted(counts, counts[-1] / 2) + 1.5) * seen.width


def _measured(model: Model, chosen: Sequence[Scalable], samples: Sequence[Sample]) -> dict[str, _Channels]:
    axes = {one.tensor: one.readers[0].reading.axis for one in chosen}
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
