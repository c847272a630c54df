"""Finds depthwise convolutions whose input channels differ so much in size that a single scale is too coarse for some.

An ordinary convolution sums its channels, so small channels matter little. A depthwise convolution computes every
output channel from a single input channel, and trained weights amplify small inputs. Values that the scale rounds to
zero are lost. Per-channel scales of activations would help, but no engine has them.

Equalizing the channels instead is `weights.equalize: depthwise` (`pipeline.ranges.equalization.uneven`), which `auto` tries.

The first samples are run through the float model once more, and the largest magnitude of every channel is compared
with the scale of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.advice import excluding, promises
from qdqtool.core.calibration import LOST_CHANNELS, CalibrationTable
from qdqtool.core.findings import Evidence, Finding, Severity
from qdqtool.core.placement import Decision, Placement
from qdqtool.core.protocols import Sample
from qdqtool.core.wording import Setting, count_noun
from qdqtool.graph.instrumented.probe import watching
from qdqtool.graph.qdq.changes import undo_rounding
from qdqtool.graph.view import Model, Node
from qdqtool.runtime.runner import open_model

SAMPLES: Final = 8
"""Samples that measure the largest magnitudes of channels; more samples hardly change them."""
FEW_STEPS: Final = 2.0
"""Number of steps below which a channel keeps less than two bits."""
SHARE: Final = 0.1
"""Share of lost channels from which a finding is reported: real networks have a few channels that hardly ever fire."""

_DEAD: Final = 2.0**-24
"""Share of the largest channel below which a channel counts as empty: the remains of a Relu that never fires, not a signal."""

Floats = NDArray[np.float32]


def lost_channels(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    samples: Iterable[Sample],
    largest: Mapping[str, Floats] | None = None,
    scalable: frozenset[str] = frozenset(),
) -> tuple[Finding, ...]:
    """Report each quantized depthwise Conv in which the common scale destroys a tenth of the channels or more.

    `largest` has the largest magnitude of each channel of the inputs of these convolutions, over the first samples.
    Without it, or if the table equalized channels, the first samples are run, because the scales belong to the
    equalized channels. The channels of tensors in `scalable` can be made equally large.
    """
    slots = _slots(model, placement)
    if not slots:
        return ()
    network = undo_rounding(model, table)
    tensors = depthwise_inputs(model, placement)
    if largest is None or network is not model or not largest.keys() >= set(tensors):
        largest = largest_magnitudes(network, list(tensors), samples)
    scales = {entry.tensor: entry.scales[0] for entry in table.ranges}
    measured = [entry for entry in slots if entry.tensor in largest]
    is_evened = table.equalized is not None and table.equalized.way == "depthwise"
    judged = (
        _judge_channels(
            entry,
            largest[entry.tensor],
            scales[entry.tensor],
            scalable=entry.tensor in scalable and not is_evened,
        )
        for entry in measured
    )
    return tuple(finding for finding in judged if finding is not None)


def depthwise_inputs(model: Model, placement: Placement) -> tuple[str, ...]:
    """Return the tensors that quantized depthwise convolutions read, in alphabetical order."""
    return tuple(sorted({entry.tensor for entry in _slots(model, placement)}))


def _slots(model: Model, placement: Placement) -> list[Decision]:
    nodes = {node.name for node in model.view.nodes if _is_depthwise(node, model)}
    return [entry for entry in placement.quantized if entry.slot.node in nodes and entry.slot.index == 0]


def _is_depthwise(node: Node, model: Model) -> bool:
    if node.op != "Conv" or node.attribute("group", 1) == 1:
        return False
    weight = model.view.constant(node.inputs[1])
    return weight is not None and weight.shape[1] == 1


def largest_magnitudes(
    model: Model, tensors: list[str], samples: Iterable[Sample], most: int = SAMPLES
) -> dict[str, Floats]:
    """Return the largest magnitude of every channel (axis 1), by tensor. At most the first `most` samples are used."""
    largest: dict[str, Floats] = {}
    runner = open_model(watching(model, tensors), description="float model")
    for sample in islice(samples, most):
        for tensor, values in runner.run(sample.feeds).items():
            axes = tuple(axis for axis in range(values.ndim) if axis != 1)
            peaks: Floats = np.abs(values).max(axis=axes).astype(np.float32)
            largest[tensor] = np.maximum(largest[tensor], peaks) if tensor in largest else peaks
    return largest


def _judge_channels(entry: Decision, largest: Floats, scale: float, *, scalable: bool) -> Finding | None:
    live = largest[largest > largest.max() * _DEAD]
    lost = int((live < FEW_STEPS * scale).sum())
    if not lost or lost < SHARE * live.size:
        return None
    fix = f"keep the convolution float: {excluding([entry.slot.node])}"
    if scalable:
        fix = f"give all channels the same range: {Setting('weights.equalize', 'depthwise')}; or {fix}"
    return Finding(
        code=LOST_CHANNELS[0],
        check=LOST_CHANNELS[1],
        severity=Severity.WARNING,
        subject=entry.slot.node,
        reason=f"the depthwise convolution reads {entry.tensor!r} with one scale, and {lost} of its "
        f"{count_noun(live.size, 'channel')} never exceed {FEW_STEPS:g} steps of {scale:.3g}: magnitudes "
        f"reach {live.max():.3g} in the largest channel, and {live.min():.3g} in the smallest",
        fix=fix,
        claims=promises(fix, of_finding=True),
        evidence=(Evidence(file="calibration.json", place=entry.tensor),),
        hazard="Channels that the scale rounds to zero are lost, and each output of a depthwise convolution reads one channel only.",
    )
