"""Scales for inputs that get a Q/DQ pair: from the graph, from the values of a constant, or measured on samples."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.backends.ort import open_runner
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.protocols import SampleSource
from qdqtool.graph.instrumented.probe import probe
from qdqtool.graph.model import Model
from qdqtool.matching.evidence import Operands
from qdqtool.pipeline.autofix.edits import EditRequest, Granularity

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Key = tuple[str, "int | None"]
_FILLED = 2 / 3
"""Share of a common range from which on a tensor would gain little by a range of its own."""


class Ranges:
    """Largest magnitudes of the tensors of a float model, each measured once."""

    def __init__(self, reference: Model, samples: SampleSource | None) -> None:
        self._model = reference
        self._samples = samples
        self._fixed = Operands(reference.view).fixed
        self._known: dict[_Key, NDArray[Any]] = {}

    def resolve(self, requests: Iterable[EditRequest]) -> tuple[SlotEdit, ...] | str:
        """The edits that fulfil all requests, or why there is no scale for one of them.

        A request with a limit is left out where the tensor fills most of the range it has.
        """
        edits = []
        for request in requests:
            if request.how is Granularity.FLOAT:
                edits.append(SlotEdit(slot=request.slot))
                continue
            scales = (request.scale,) if request.scale is not None else self._scales(request)
            if isinstance(scales, str):
                return scales
            if request.most is not None:
                if scales[0] >= _FILLED * request.most:
                    continue
                scales = scales[:1]
            if not all(isfinite(scale) and scale > 0 for scale in scales):
                return f"the range of {request.slot} is not a positive number"
            edits.append(
                SlotEdit(
                    slot=request.slot,
                    scales=scales,
                    axis=request.axis if len(scales) > 1 else None,
                    format=request.format,
                )
            )
        return tuple(edits)

    def _scales(self, request: EditRequest) -> tuple[float, ...] | str:
        node = self._model.view.by_name.get(request.slot.node)
        if node is None or request.slot.index >= len(node.inputs):
            return f"the float model has no input {request.slot}"
        key = node.inputs[request.slot.index], request.axis if request.how is Granularity.CHANNEL else None
        if key not in self._known:
            trouble = self._look(key)
            if trouble:
                return trouble
        amax = self._known[key]
        if key[1] is not None:
            # A channel without any value but 0 takes any scale.
            amax = np.where(amax > 0, amax, request.format.qmax)
        return tuple(float(value) / request.format.qmax for value in np.atleast_1d(amax))

    def _look(self, key: _Key) -> str:
        """Find the magnitudes of a tensor; "" or why that cannot be."""
        tensor, axis = key
        value = self._model.view.constant(tensor)
        if value is not None:
            self._known[key] = _amax(value, axis)
            return ""
        if self._samples is None:
            return f"no samples to measure the range of {tensor!r} on"
        if not self._samples.meaningful and tensor not in self._fixed:
            return f"random samples say nothing about the range of {tensor!r}; pass --samples"
        with tempfile.TemporaryDirectory() as folder:
            runner = open_runner(probe(self._model, [tensor], Path(folder)).source, description="probe")
            wanted = {info.name for info in runner.inputs}
            for sample in self._samples:
                feeds = {name: array for name, array in sample.feeds.items() if name in wanted}
                seen = _amax(runner.run(feeds)[tensor], axis)
                self._known[key] = np.maximum(seen, self._known.get(key, seen))
        return ""


def _amax(value: NDArray[Any], axis: int | None) -> NDArray[Any]:
    magnitudes = np.abs(value.astype(np.float64))
    others = tuple(place for place in range(value.ndim) if place != axis)
    return np.asarray(magnitudes.max(axis=None if axis is None else others, initial=0.0))
