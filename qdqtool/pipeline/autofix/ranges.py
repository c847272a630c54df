"""Scales for inputs that get a Q/DQ pair: from the graph, from the values of a constant, or measured on samples."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.core.fixes import SlotEdit
from qdqtool.core.protocols import SampleSource
from qdqtool.core.quant_format import QuantFormat
from qdqtool.graph.instrumented.probe import probe
from qdqtool.graph.model import Model
from qdqtool.runtime.runner import open_runner
from qdqtool.trt.ops import computed_once

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Key = tuple[str, "int | None"]
_FILLED = 2 / 3
"""Share of a common range from which on a tensor would gain little by a range of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """Edits whose scales are all known.

    Attributes:
        edits: those worth making.
        guessed: tensors whose range comes from random samples: it shows what a builder makes of the edits, and is no
            range to keep.
    """

    edits: tuple[SlotEdit, ...]
    guessed: tuple[str, ...] = ()


class Ranges:
    """Largest magnitudes of the tensors of a float model, each measured once.

    Args:
        reference: the float model.
        samples: what run-time tensors are measured on.
        guesses: whether ranges of random samples are guesses, because those of the model at hand are not.
    """

    def __init__(self, reference: Model, samples: SampleSource | None, *, guesses: bool = True) -> None:
        self._model = reference
        self._samples = samples
        self._guesses = guesses and samples is not None and not samples.meaningful
        self._fixed = computed_once(reference.view)
        self._known: dict[_Key, NDArray[Any]] = {}

    def resolve(self, edits: Iterable[SlotEdit]) -> Resolved | str:
        """The edits with their scales, or why there is no scale for one of them.

        An edit with a limit is left out if the tensor fills most of the range it has.
        """
        found, guessed = [], []
        for edit in edits:
            if edit.scales is not None:
                found.append(edit)
                continue
            scales = self._scales(edit)
            if isinstance(scales, str):
                return scales
            if edit.most is not None and scales[0] >= _FILLED * edit.most:
                continue
            if not all(isfinite(scale) and scale > 0 for scale in scales):
                return f"the range of {edit.slot} is not a positive number"
            found.append(replace(edit, scales=scales, axis=edit.axis if len(scales) > 1 else None, most=None))
            tensor = self._model.view.by_name[edit.slot.node].inputs[edit.slot.index]
            if self._guesses and not self._is_fixed(tensor):
                guessed.append(tensor)
        return Resolved(edits=tuple(found), guessed=tuple(dict.fromkeys(guessed)))

    def _is_fixed(self, tensor: str) -> bool:
        return tensor in self._fixed or self._model.view.is_constant(tensor)

    def _scales(self, edit: SlotEdit) -> tuple[float, ...] | str:
        node = self._model.view.by_name.get(edit.slot.node)
        if node is None or edit.slot.index >= len(node.inputs):
            return f"the float model has no input {edit.slot}"
        key = node.inputs[edit.slot.index], edit.axis
        if key not in self._known:
            trouble = self._look(key)
            if trouble:
                return trouble
        return _steps(self._known[key], edit.format, per_channel=edit.axis is not None)

    def _look(self, key: _Key) -> str:
        """Find the magnitudes of a tensor; "" or why that cannot be."""
        tensor, axis = key
        value = self._model.view.constant(tensor)
        if value is not None:
            self._known[key] = _amax(value, axis)
            return ""
        if not self._model.view.info(tensor).dtype.is_float:
            return f"{tensor!r} holds no floating-point numbers"
        if self._samples is None:
            return f"no samples to measure the range of {tensor!r} on; pass --samples"
        with tempfile.TemporaryDirectory() as folder:
            runner = open_runner(probe(self._model, [tensor], Path(folder)).source, description="probe")
            wanted = {info.name for info in runner.inputs}
            for sample in self._samples:
                feeds = {name: array for name, array in sample.feeds.items() if name in wanted}
                seen = _amax(runner.run(feeds)[tensor], axis)
                self._known[key] = np.maximum(seen, self._known.get(key, seen))
        return ""


def _steps(amax: NDArray[Any], format_: QuantFormat, *, per_channel: bool) -> tuple[float, ...]:
    # A channel without any value but 0 takes any scale.
    filled = np.where(amax > 0, amax, format_.qmax) if per_channel else amax
    return tuple(float(value) / format_.qmax for value in np.atleast_1d(filled))


def _amax(value: NDArray[Any], axis: int | None) -> NDArray[Any]:
    magnitudes = np.abs(value.astype(np.float64))
    others = tuple(place for place in range(value.ndim) if place != axis)
    return np.asarray(magnitudes.max(axis=None if axis is None else others, initial=0.0))
