"""Runs a model layer by layer, for samples that cannot run as one batch.

Bias correction needs this walk if a model accepts no batches: the shift of a layer follows from the mean of its
outputs over the samples, computed from the corrected outputs of all earlier layers. So every layer is run once for
all samples, and values that no later layer reads are freed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.calibration import NodeShift
from qdqtool.core.wording import Setting
from qdqtool.errors import UsageError
from qdqtool.graph.instrumented.probe import boundary, segment, watching
from qdqtool.graph.view import Model, Node
from qdqtool.runtime.runner import OrtRunner, open_model, open_piece
from qdqtool.trt.ops import result_axis

Floats = NDArray[np.float32]
Feeds = Mapping[str, NDArray[Any]]

DOUBT: Final = 4.0
"""Squared standard errors that a squared shift must exceed; smaller shifts become 0."""
Correct = Callable[[Node, "Floats"], "Floats"]
"""Function from the mean outputs of a layer, (samples, channels), to the values added to its outputs, as many rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _WalkedPiece:
    """A part of a model that runs layer by layer: one layer, and the nodes between it and earlier layers."""

    runner: OrtRunner
    inputs: tuple[str, ...]


class LayerWalk:
    """The layers of one model, in graph order.

    Sessions are kept from walk to walk, since opening them costs as much as running a dozen samples.
    """

    def __init__(self, model: Model, layers: Sequence[Node]) -> None:
        self._model = model
        self._layers = tuple(layers)
        self._pieces: dict[str, _WalkedPiece] = {}
        self._last_use: dict[str, str] = {}

    def run(self, feeds: Sequence[Feeds], correct: Correct) -> None:
        """Run the layers with these samples. After each layer, `correct` returns the values to add to the layer's outputs.

        Raises:
            UsageError: the model is too large to be run from memory.
        """
        computed = [info.name for info in self._model.view.inputs]
        if not self._last_use:
            self._last_use = self._plan(computed)
        values = {name: [feed[name] for feed in feeds] for name in computed}
        for node in self._layers:
            output = node.outputs[0]
            piece = self._piece(node, computed)
            columns = [values[name] for name in piece.inputs]
            rows = [
                piece.runner.run(dict(zip(piece.inputs, row, strict=True)))[output]
                for row in zip(*columns, strict=True)
            ]
            shift = correct(node, np.stack([channel_means(node, value) for value in rows]))
            values[output] = [
                _move_shift(node, value, sample_shift)
                for value, sample_shift in zip(rows, shift, strict=True)
            ]
            computed.append(output)
            for name in [name for name, last in self._last_use.items() if last == node.name]:
                values.pop(name, None)

    def _piece(self, node: Node, computed: Sequence[str]) -> _WalkedPiece:
        if node.name not in self._pieces:
            piece = segment(self._model, computed, node.outputs[0])
            runner = open_piece(_in_memory(piece.source), description=node.name)
            self._pieces[node.name] = _WalkedPiece(
                runner=runner, inputs=tuple(info.name for info in piece.inputs)
            )
        return self._pieces[node.name]

    def _plan(self, inputs: Sequence[str]) -> dict[str, str]:
        """Return the last layer that needs each tensor. A tensor that no layer needs is dropped at once."""
        computed = set(inputs)
        last = dict.fromkeys(computed, self._layers[-1].name)
        for node in self._layers:
            last.update(dict.fromkeys(boundary(self._model, computed, node.outputs[0]), node.name))
            last[node.outputs[0]] = node.name
            computed.add(node.outputs[0])
        return last


def believed_shifts(
    walk: LayerWalk,
    target_means: Mapping[str, Floats],
    feeds: Sequence[Feeds],
    on_layer: Callable[[int], None] | None = None,
) -> tuple[NodeShift, ...]:
    """Return bias shifts that move the mean output of each layer to `target_means`, in one walk through the layers.

    `on_layer` is called with the number of layers done.
    """
    shifts: list[NodeShift] = []

    def correct_means(node: Node, means: Floats) -> Floats:
        shift = shrink_means(target_means[node.name] - means)
        shifts.append(NodeShift(node=node.name, shift=tuple(float(value) for value in shift)))
        if on_layer is not None:
            on_layer(len(shifts))
        return np.broadcast_to(shift, means.shape)

    walk.run(feeds, correct_means)
    return tuple(shifts)


def shrink_means(differences: Floats) -> Floats:
    """Return the mean of each channel over the samples, shrunk by its uncertainty (positive-part James-Stein).

    A channel with NaN or infinity in a sample gets no shift.
    """
    mean = differences.mean(axis=0, dtype=np.float64)
    doubt = differences.var(axis=0, ddof=1, dtype=np.float64) / len(differences)
    share = np.maximum(0.0, 1.0 - DOUBT * doubt / np.maximum(mean**2, np.finfo(np.float64).tiny))
    shift = mean * share
    shrunk: Floats = np.where(np.isfinite(shift), shift, 0.0).astype(np.float32)
    return shrunk


def float_means(model: Model, layers: Sequence[Node], feeds: Sequence[Feeds]) -> dict[str, Floats]:
    """Return the mean output of each channel for each sample, (samples, channels), by node name."""
    runner = open_model(watching(model, [node.outputs[0] for node in layers]), description="float model")
    rows: dict[str, list[Floats]] = {node.name: [] for node in layers}
    for feed in feeds:
        values = runner.run(feed)
        for node in layers:
            rows[node.name].append(channel_means(node, values[node.outputs[0]]))
    return {name: np.stack(means) for name, means in rows.items()}


def channel_means(node: Node, value: NDArray[Any]) -> Floats:
    """Return the mean of every channel of one output of a node, (channels,)."""
    axis = result_axis(node.op) % value.ndim
    axes = tuple(dim for dim in range(value.ndim) if dim != axis)
    means: Floats = value.astype(np.float64).mean(axis=axes).astype(np.float32)
    return means


def _move_shift(node: Node, value: NDArray[Any], shift: Floats) -> NDArray[Any]:
    axis = result_axis(node.op) % value.ndim
    spread = shift.reshape([-1 if dim == axis else 1 for dim in range(value.ndim)])
    moved: NDArray[Any] = (value + spread).astype(value.dtype)
    return moved


def _in_memory(source: bytes | Path) -> bytes:
    if isinstance(source, bytes):
        return source
    raise UsageError(
        "bias correction needs a model below 2 GiB",
        fix=f"switch bias correction off: {Setting('calibrate.bias', 'keep')}",
        where=str(source),
    )
