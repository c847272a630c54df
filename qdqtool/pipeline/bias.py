"""Bias correction: what rounding and clipping do to the mean of each layer's output is taken back in its bias.

Rounding errors of weights do not cancel where the inputs have a mean, as after ReLU: each output channel moves by
the sum of error x mean, and depthwise networks such as MobileNet lose points of accuracy to nothing but that. The
shift is a constant, so the bias can carry it, at no cost in the engine.

Source: Nagel et al., "Data-Free Quantization through Weight Equalization and Bias Correction" (ICCV 2019), section
4.2, in its empirical form: layer after layer in graph order, each measured with all layers before it corrected
already. Correcting many layers at once from one measurement overshoots so far that the model is destroyed. A channel
whose shift is no larger than its own uncertainty over the samples is left alone (positive-part James-Stein shrinkage).

Where the model takes a batch of any size, all samples run as one, and the shifts are computed on the way from the means
of the float layers (`graph.instrumented.corrected`): one run, in the session in which `auto` judges tables. Otherwise
every layer is run once, from the corrected outputs of the layers before it, and these are dropped as soon as no later
layer needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.backends.ort import open_runner
from qdqtool.core.calibration import CalibrationTable, NodeShift
from qdqtool.core.placement import Placement
from qdqtool.core.protocols import Feeds, SampleSource
from qdqtool.core.recipe import InsertOptions
from qdqtool.errors import UsageError
from qdqtool.graph.instrumented.probe import probe
from qdqtool.graph.instrumented.segment import boundary, segment
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.bias import shiftable
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Node
from qdqtool.pipeline.trial import TAKEN, Budget, FloatPass, Reference, Trial, believed
from qdqtool.trt.ops import result_axis

Floats = NDArray[np.float32]
OnProgress = Callable[[int, "int | None"], None]


def correct_biases(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    samples: SampleSource,
    on_progress: OnProgress | None = None,
    seen: FloatPass | None = None,
) -> CalibrationTable:
    """The table with what to add to the biases, so that each layer's mean output is that of the float model.

    The samples are those that judge tables, from all over the source; fewer than 2 change nothing.
    """
    if not shiftable(model.view) or not len(samples):
        return table
    budget = Budget(most=2 * TAKEN, on_progress=on_progress)
    reference = Reference(model, samples, budget, bias=True, seen=seen)
    judged = None
    if reference.together:
        trial = Trial(model, placement, table, reference, budget)
        judged = trial.candidate("", table, trial.at_once()).table
    return shifted(model, placement, judged or table, reference, on_progress)


def shifted(
    model: Model,
    placement: Placement,
    table: CalibrationTable,
    reference: Reference,
    on_progress: OnProgress | None = None,
) -> CalibrationTable:
    """The same for samples that ran through the float model already.

    Where the model takes batches the table is one that was judged on them, which gave it its shifts.
    """
    if reference.together:
        return replace(table, shifts=tuple(entry for entry in table.shifts if any(entry.shift)))
    feeds = [sample.feeds for sample in reference.samples]
    layers = shiftable(model.view)
    if len(feeds) < 2 or not layers:
        return table
    quantized = insert(model, placement, replace(table, shifts=()), InsertOptions())
    shifts = _layer_by_layer(model, quantized, layers, feeds, on_progress)
    return replace(
        table,
        shifts=tuple(
            NodeShift(node=node, shift=tuple(float(value) for value in shift))
            for node, shift in shifts.items()
            if shift.any()
        ),
    )


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
