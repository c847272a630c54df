"""`weights.equalize: depthwise`: makes the channels that depthwise convolutions read equally large.

One scale serves all channels of an activation. An ordinary convolution adds its channels up, so small ones matter little; a depthwise one
computes every output channel from one channel alone, and what the scale rounds away of a small one is gone. Its weights have a scale for each
channel, so that they take any factor without loss:

    x -> Q/DQ -> depthwise (w)         x / s -> Q/DQ -> depthwise (w * s)

Every channel then has as many steps as the largest one had, and none has fewer: only the division costs. Constants in front take it behind a
Relu or a pool; behind a Swish or a Clip, through which factors do not pass, a Mul does. TensorRT for RTX 1.7.1 computes it in the kernel in front, as
it does the Swish. Classic TensorRT was not seen to: directly behind a convolution and its Clip `auto` leaves the Mul out there, since it would come between
what is fused, and behind a Swish the outputs must gain much more by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from qdqtool.calibration.table import formats_of, groups
from qdqtool.core.calibration import INT8_LEVELS, CalibrationTable
from qdqtool.core.findings import Finding
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.protocols import Sample
from qdqtool.core.quant_format import INT8
from qdqtool.core.weights import WeightChanges
from qdqtool.graph.equalize import (
    Scalable,
    is_free,
    likely_in_front,
    read_energy,
    scalables,
    scaled,
)
from qdqtool.graph.model import Model
from qdqtool.pipeline.ranges.channels import SAMPLES as FEW
from qdqtool.pipeline.ranges.channels import largest_magnitudes, lost_channels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

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
    """Return the tensors whose readers all have quantized weights; other tensors would gain nothing."""
    weights = {entry.slot.node for entry in placement.quantized if entry.kind is SlotKind.WEIGHT}
    return tuple(one for one in scalables(model.view) if {reader.node for reader in one.readers} <= weights)


def uneven(model: Model, placement: Placement, *, everywhere: bool) -> tuple[Scalable, ...]:
    """Return the INT8 activations whose channels can be scaled for depthwise layers.

    Without `everywhere`, only those that cost no kernel.
    """
    formats = formats_of(placement)
    # what shares its scale with others has channels of theirs
    alone = {group[0] for group in groups(placement) if len(group) == 1}
    return tuple(
        one
        for one in candidates(model, placement)
        if all(reader.reading.groups > 1 for reader in one.readers)
        and one.tensor in alone
        and formats.get(one.tensor) == INT8
        and (everywhere or is_free(model.view, one))
    )


def likely_uneven(model: Model, placement: Placement, *, everywhere: bool) -> tuple[Scalable, ...]:
    """Return the tensors of `uneven` if constants before them predict much less noise with equal channels, or predict nothing.

    Channels behind random weights are alike.
    """
    chosen = uneven(model, placement, everywhere=everywhere)
    likely: dict[str, NDArray[Any]] = {}
    for one in chosen:
        found = likely_in_front(model.view, one)
        if found is None or not found.max(initial=0) > 0:
            return chosen
        likely[one.tensor] = found
    before, after = noise_behind(model, chosen, likely)
    return chosen if before >= _FORETOLD * after else ()


def evened(model: Model, chosen: Sequence[Scalable], samples: Sequence[Sample]) -> WeightChanges:
    """Make the channels of these tensors equally large, as measured on the samples.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    peaks = _peaks(model, chosen, samples)
    return scaled(model.view, {one: factors(peaks[one.tensor]) for one in chosen if peaks[one.tensor].any()})


def evened_if_foretold(
    placed: tuple[Model, Placement],
    chosen: Sequence[Scalable],
    samples: Sequence[Sample],
    table: CalibrationTable,
    seen: Mapping[str, NDArray[np.float32]],
) -> WeightChanges:
    """Equalize as `evened` if that is predicted to leave much less noise after all tensors together; else change nothing.

    `seen` are the largest magnitudes of channels over a few samples, of which more are run only where these foretell it.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    model, placement = placed
    formats = formats_of(placement)
    few: Mapping[str, NDArray[Any]] = seen
    if not seen.keys() >= {one.tensor for one in chosen}:
        few = _peaks(model, chosen, samples[:FEW])
    before, after = noise_behind(model, chosen, few, table)
    whole = sum(entry.tensor in formats for entry in table.ranges)
    if before < _FORETOLD * after or before < _PART * _USUAL * whole:
        return WeightChanges()
    return evened(model, chosen, samples)


def noise_behind(
    model: Model,
    chosen: Sequence[Scalable],
    largest: Mapping[str, NDArray[Any]],
    table: CalibrationTable | None = None,
) -> tuple[float, float]:
    """Return the noise that one scale leaves after the depthwise layers, as it is and with equal channels.

    It is relative to the signal that the largest values make.

    It is the sum over the layers: one that is loud does not speak for all. Without a table every scale reaches to the largest value.
    """
    reach = {} if table is None else {entry.tensor: entry.amax[0] for entry in table.ranges}
    before = after = 0.0
    for one in chosen:
        peaks = largest[one.tensor].astype(np.float64)
        read = np.where(peaks > 0, read_energy(model.view, one), 0.0)
        signal = float((read * peaks**2).sum()) * 12 * INT8_LEVELS**2
        if signal > 0:
            each = factors(peaks)
            before += float(read.sum()) * min(reach.get(one.tensor, np.inf), peaks.max()) ** 2 / signal
            after += float((read * each**2).sum()) * float((peaks / each).max()) ** 2 / signal
    return before, after


def channel_findings(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    samples: Iterable[Sample],
    seen: Mapping[str, NDArray[np.float32]] | None = None,
) -> tuple[Finding, ...]:
    """Return the findings of `lost_channels`, which say if channels can be made equally large."""
    spread = frozenset(one.tensor for one in uneven(model, placement, everywhere=True))
    return lost_channels(model, placement, table, samples, seen, spread)


def factors(largest: Floats) -> Floats:
    """Convert largest magnitudes of channels to factors around 1, in steps of a quarter of an octave; 1 for empty channels."""
    live = largest > _DEAD * largest.max()
    if not live.any():
        return np.ones(largest.shape)
    logs = np.log2(np.where(live, largest, 1.0))
    steps = np.rint(_STEPS * (logs - logs[live].mean())) / _STEPS
    found: Floats = np.where(live, 2.0**steps, 1.0)
    return found


def _peaks(model: Model, chosen: Sequence[Scalable], samples: Sequence[Sample]) -> Mapping[str, Floats]:
    found = largest_magnitudes(model, [one.tensor for one in chosen], samples, len(samples))
    return {name: values.astype(np.float64) for name, values in found.items()}
