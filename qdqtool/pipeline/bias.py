"""Bias correction: what rounding and clipping do to the mean of each layer's output is taken back in its bias.

Rounding errors of weights do not cancel where the inputs have a mean, as after ReLU: each output channel moves by
the sum of error x mean, and depthwise networks such as MobileNet lose points of accuracy to nothing but that. The
shift is a constant, so the bias can carry it, at no cost in the engine.

Source: Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section
4.2, in its empirical form: layer after layer in graph order, each measured with all layers before it corrected
already. Correcting many layers at once from one measurement overshoots so far that the model is destroyed. A channel
whose shift is no larger than its own uncertainty over the samples is left alone (positive-part James-Stein shrinkage).

Where the model takes a batch of any size, all samples run as one, through the float and the quantized network side by
side, and the shifts are computed on the way (`graph.streams`): one session and one run. Otherwise every layer is run
once, from the corrected outputs of the layers before it, and these are dropped as soon as no later layer needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.backends.ort import OrtRunner, open_model, open_runner
from qdqtool.core.calibration import CalibrationTable, NodeShift
from qdqtool.core.dtypes import DType
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Feeds, Sample
from qdqtool.core.recipe import InsertOptions
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.instrumented.probe import probe
from qdqtool.graph.instrumented.segment import boundary, segment
from qdqtool.graph.instrumented.streams import free_batch, streams
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.bias import shiftable
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import result_axis

SAMPLES = 32
"""More samples change the shifts less than their uncertainty."""
_FEWEST = 8
_ROOM = 384 << 20
"""Bytes that the live tensors of both networks may take."""
_LIVE = 4
"""Tensors of the largest size that are alive at once."""
_DOUBT = 4.0
"""Squared standard errors that a squared shift must exceed before any of it is believed."""

Floats = NDArray[np.float32]
OnProgress = Callable[[int, "int | None"], None]


def correct_biases(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    samples: Iterable[Sample],
    on_progress: OnProgress | None = None,
) -> CalibrationTable:
    """The table with what to add to the biases, so that each layer's mean output is that of the float model.

    The first 32 samples are used; fewer than 2 change nothing.
    """
    feeds = [dict(sample.feeds) for sample in islice(samples, SAMPLES)]
    layers = shiftable(model.view)
    if len(feeds) < 2 or not layers:
        return table
    quantized = insert(model, placement, table, InsertOptions())
    shifts = _in_one_run(model, quantized, layers, feeds)
    if shifts is None:
        shifts = _layer_by_layer(model, quantized, layers, feeds, on_progress)
    return replace(
        table,
        shifts=tuple(
            NodeShift(node=node, shift=tuple(float(value) for value in shift))
            for node, shift in shifts.items()
            if shift.any()
        ),
    )


def _in_one_run(
    model: Model, quantized: Model, layers: Sequence[Node], feeds: Sequence[Feeds]
) -> dict[str, Floats] | None:
    """The shifts from one run of all samples as one batch; None for a model that takes no batches.

    A model may declare a free batch and still mix its samples, by a Reshape with a number in it; so it is tried.
    """
    view = model.view
    shapes = [info.shape or () for info in view.inputs]
    of_floats = all(view.info(node.outputs[0]).dtype is DType.FLOAT32 for node in layers)
    if not of_floats or any(not shape or shape[0] not in {1, *_names(shape)} for shape in shapes):
        return None
    if any(shape[0] == 1 for shape in shapes):
        model, quantized = free_batch(model), free_batch(quantized)
    feeds = feeds[: _fitting(view)]
    doubled = streams(quantized, {node.name for node in layers}, model, samples=len(feeds), doubt=_DOUBT)
    if doubled is None:
        return None
    try:
        plain = open_model(model, description="float model")
    except InputFileError:
        return None
    if not _takes_batches(plain, feeds[:2]):
        return None
    del plain
    runner = open_model(doubled.model, description="float and Q/DQ model")
    values = runner.run(_joined(feeds))
    return {node: values[name] for node, name in doubled.shifts.items()}


def _names(shape: Sequence[int | str]) -> set[str]:
    return {dim for dim in shape if isinstance(dim, str)}


def _fitting(view: GraphView) -> int:
    """How many samples run as one batch: as many as keep the live tensors of both networks within a budget."""
    shapes = (view.info(name).shape or () for node in view.nodes for name in node.outputs)
    largest = max((prod(dim for dim in shape if isinstance(dim, int)) for shape in shapes), default=1)
    return max(_FEWEST, min(SAMPLES, _ROOM // (4 * _LIVE * largest)))


def _takes_batches(runner: OrtRunner, feeds: Sequence[Feeds]) -> bool:
    """Whether two samples in a batch give what they give one by one."""
    try:
        together = runner.run(_joined(feeds))
        single = [runner.run(feed) for feed in feeds]
    except InputFileError:
        return False
    return all(
        together[name].ndim > 0
        and together[name].shape[0] == sum(one[name].shape[0] for one in single if one[name].ndim)
        and np.allclose(together[name], np.concatenate([one[name] for one in single]), rtol=1e-3, atol=1e-4)
        for name in runner.outputs
    )


def _joined(feeds: Sequence[Feeds]) -> dict[str, NDArray[Any]]:
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def _layer_by_layer(
    model: Model,
    quantized: Model,
    layers: Sequence[Node],
    feeds: Sequence[Feeds],
    on_progress: OnProgress | None,
) -> dict[str, Floats]:
    """The same with a run per layer, for models of a fixed batch: samples cannot wait for each other in one graph."""
    wanted = _float_means(model, layers, feeds)
    walk = _Walk(quantized, layers, feeds)
    shifts: dict[str, Floats] = {}
    for done, node in enumerate(layers, start=1):
        shift = believed(wanted[node.outputs[0]] - walk.means(node))
        walk.correct(node, shift)
        shifts[node.name] = shift
        if on_progress is not None:
            on_progress(done, len(layers))
    return shifts


class _Walk:
    """Goes through the quantized model layer by layer and holds what later layers start from."""

    def __init__(self, model: Model, layers: Sequence[Node], feeds: Sequence[Feeds]) -> None:
        self._model = model
        self._known = [info.name for info in model.view.inputs]
        self._values: dict[str, list[NDArray[Any]]] = {
            name: [feed[name] for feed in feeds] for name in self._known
        }
        self._last_use = self._plan(layers)

    def means(self, node: Node) -> Floats:
        """Mean output of each channel for each sample, (samples, channels), with all layers before corrected."""
        output = node.outputs[0]
        piece = segment(self._model, self._known, output)
        runner = open_runner(_in_memory(piece.source), description=node.name)
        inputs = [self._values[info.name] for info in piece.inputs]
        names = [info.name for info in piece.inputs]
        self._values[output] = [
            runner.run(dict(zip(names, row, strict=True)))[output] for row in zip(*inputs, strict=True)
        ]
        return np.stack([_channel_means(node, value) for value in self._values[output]])

    def correct(self, node: Node, shift: Floats) -> None:
        """Let the layers behind `node` see its output as if its bias were larger by `shift`."""
        output = node.outputs[0]
        values = self._values[output]
        rank = values[0].ndim
        axis = result_axis(node.op) % rank
        spread = shift.reshape([-1 if dim == axis else 1 for dim in range(rank)])
        self._values[output] = [(value + spread).astype(value.dtype) for value in values]
        self._known.append(output)
        for name in [name for name, last in self._last_use.items() if last == node.name]:
            self._values.pop(name, None)

    def _plan(self, layers: Sequence[Node]) -> dict[str, str]:
        """The last layer that starts from each tensor; a tensor that none starts from is dropped at once."""
        known = set(self._known)
        last = dict.fromkeys(known, layers[-1].name)
        for node in layers:
            last.update(dict.fromkeys(boundary(self._model, known, node.outputs[0]), node.name))
            last[node.outputs[0]] = node.name
            known.add(node.outputs[0])
        return last


def _float_means(model: Model, layers: Sequence[Node], feeds: Sequence[Feeds]) -> dict[str, Floats]:
    """Mean output of each channel for each sample, (samples, channels), by output tensor."""
    watched = probe(model, [node.outputs[0] for node in layers])
    runner = open_runner(_in_memory(watched.source), description="float model")
    rows: dict[str, list[Floats]] = {node.outputs[0]: [] for node in layers}
    for feed in feeds:
        values = runner.run(feed)
        for node in layers:
            rows[node.outputs[0]].append(_channel_means(node, values[node.outputs[0]]))
    return {name: np.stack(means) for name, means in rows.items()}


def _in_memory(source: bytes | Path) -> bytes:
    if isinstance(source, bytes):
        return source
    raise UsageError(
        "bias correction needs a model below 2 GiB",
        fix="leave it out: --set calibrate.bias=keep",
        where=str(source),
    )


def _channel_means(node: Node, value: NDArray[Any]) -> Floats:
    axis = result_axis(node.op) % value.ndim
    others = tuple(dim for dim in range(value.ndim) if dim != axis)
    means: Floats = value.astype(np.float64).mean(axis=others).astype(np.float32)
    return means


def believed(differences: Floats) -> Floats:
    """The mean over samples of each channel, shrunk by its uncertainty."""
    mean = differences.mean(axis=0, dtype=np.float64)
    doubt = differences.var(axis=0, ddof=1, dtype=np.float64) / len(differences)
    share = np.maximum(0.0, 1.0 - _DOUBT * doubt / np.maximum(mean**2, np.finfo(np.float64).tiny))
    believed: Floats = (mean * share).astype(np.float32)
    return believed
