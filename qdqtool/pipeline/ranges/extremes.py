"""Refuses a sample whose largest value makes all other values zero.

A range must reach to the largest value, and all magnitudes below half a step become zero. A damaged sample (3e38 for
one pixel) ruins the whole network: every output is then equal for all samples. Histograms say which tensors to look
at; only for these the samples run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from calibrators.histogram import Histogram
from qdqtool.calibration.table import bounds
from qdqtool.core.advice import excluding
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.grids import grid_for
from qdqtool.core.protocols import SampleSource
from qdqtool.core.wording import count_noun, list_names
from qdqtool.errors import InputFileError
from qdqtool.graph.instrumented.probe import watching
from qdqtool.graph.view import Model
from qdqtool.pipeline.writing import or_without
from qdqtool.runtime.runner import open_model

_SURVIVING: Final = 1e-3
"""Least share of the nonzero values that must stay nonzero; with a smaller share a tensor counts as empty."""
_CULPRITS: Final = 0.01
"""Largest share of the samples that may contain the extreme values; one sample always may."""
_APART: Final = 1e6
"""Factor by which an extreme sample must exceed all other samples inside the network, where gates make most
values tiny by design.
"""
_FEWEST: Final = 8
"""Number of samples below which samples are not compared inside the network."""
_LARGE: Final = 1e4
"""Largest magnitude from which a tensor is checked if only its extremes were collected."""


_SHOWN: Final = 3
"""Number of tensors that a note names."""


@dataclass(slots=True)
class _EmptiedTensor:
    """Statistics of one tensor over the samples. Quantization turns magnitudes up to `limit` into zero."""

    limit: float
    alive: int = 0
    left: int = 0
    peaks: list[float] = field(default_factory=list)
    value: float = 0.0
    sample: str = ""

    def add(self, values: NDArray[Any], sample: str) -> None:
        magnitudes = np.abs(values.astype(np.float64))
        magnitudes[~np.isfinite(magnitudes)] = 0.0
        self.alive += int(np.count_nonzero(magnitudes))
        self.left += int(np.count_nonzero(magnitudes > self.limit))
        peak = float(magnitudes.max(initial=0.0))
        self.peaks.append(peak)
        if peak > abs(self.value):
            self.value, self.sample = float(values.reshape(-1)[int(magnitudes.argmax())]), sample


def refuse_extremes(
    model: Model, table: CalibrationTable, tensors: Mapping[str, Histogram], samples: SampleSource
) -> tuple[str, ...]:
    """Raise if a few samples make a scale so large that all other values become zero. If the check failed, return a note.

    `model` is the network that the table is for, and `tensors` are its histograms.

    Raises:
        InputFileError: one sample does; it, the tensor and the value are named.
    """
    chosen = _suspects(model, table, tensors, len(samples))
    if not chosen:
        return ()
    emptied, notes = or_without(
        "the check for extreme values",
        lambda: _inspect_tensors(model, chosen, samples),
        dict[str, _EmptiedTensor],
    )
    fed = {info.name for info in model.view.inputs}
    for name, tensor in emptied.items():
        if _is_emptied(tensor, is_input=name in fed):
            raise _refusal(model, name, tensor)
    return notes


def doubtful_ranges(
    model: Model, table: CalibrationTable, tensors: Mapping[str, Histogram], samples: int
) -> tuple[str, ...]:
    """Return a note on tensors that `refuse_extremes` would check, for histograms whose samples are not available."""
    names = list(_suspects(model, table, tensors, samples))
    if not names:
        return ()
    first = tensors[names[0]]
    value = first.high if first.high == first.amax else first.low
    note = (
        f"few large values may make all others zero in {count_noun(len(names), 'tensor')}: {list_names(names, _SHOWN)}; the first "
        f"reaches {value:.6g}. Histograms do not show which sample contains such a value: pass the samples with --samples"
    )
    return (note,)


def smallest_ranges(table: CalibrationTable, tensors: Mapping[str, Histogram]) -> CalibrationTable:
    """Return the table with the smallest ranges that a calibrator can choose: one bin of each histogram.

    A channel that is zero with this range is zero with every calibrator.
    """

    def smallest(entry: TensorRange) -> TensorRange:
        histogram = tensors.get(entry.tensor)
        if histogram is None or histogram.exponent is None or not histogram.has_bins:
            return entry
        return replace(entry, amax=(min(entry.amax[0], histogram.width),))

    return replace(
        table, ranges=tuple(smallest(entry) if entry.axis is None else entry for entry in table.ranges)
    )


def _suspects(
    model: Model, table: CalibrationTable, tensors: Mapping[str, Histogram], samples: int
) -> dict[str, float]:
    """Return tensors whose values may nearly all become zero, inputs first, each with the magnitude that rounds to zero."""
    fed, bounded = {info.name for info in model.view.inputs}, bounds(model.view)
    limits = {
        entry.tensor: limit
        for entry in table.ranges
        if entry.axis is None and entry.block is None and entry.tensor in tensors
        for limit in (_limit(entry),)
        if entry.tensor not in bounded
        and _is_suspect(tensors[entry.tensor], entry, limit, samples, is_input=entry.tensor in fed)
    }
    return dict(sorted(limits.items(), key=lambda item: item[0] not in fed))


def _limit(entry: TensorRange) -> float:
    """Return half a quantization step; smaller magnitudes round to zero."""
    grid = grid_for(entry.format)
    return entry.amax[0] * float(grid.magnitudes[1]) / (2 * grid.top)


def _is_suspect(
    histogram: Histogram, entry: TensorRange, limit: float, samples: int, *, is_input: bool
) -> bool:
    if not histogram.total or histogram.exponent is None or histogram.amax < entry.amax[0] / 2:
        return False  # the range comes from another tensor
    if not histogram.has_bins:
        return histogram.amax >= _LARGE
    if is_input:
        return int(histogram.counts[int(limit / histogram.width) + 1 :].sum()) <= _SURVIVING * histogram.total
    # The first bin contains all values below a few thousandths of the largest.
    few = (1 + _CULPRITS * samples) / samples
    return samples >= _FEWEST and int(histogram.counts[1:].sum()) <= few * histogram.total


def _inspect_tensors(
    model: Model, chosen: Mapping[str, float], samples: SampleSource
) -> dict[str, _EmptiedTensor]:
    emptied = {name: _EmptiedTensor(limit=limit) for name, limit in chosen.items()}
    runner = open_model(watching(model, list(chosen)), description="float model")
    for sample in samples:
        feeds = {info.name: sample.feeds[info.name] for info in runner.inputs}
        for name, values in runner.run(feeds).items():
            emptied[name].add(values, sample.name)
    return emptied


def _is_emptied(emptied: _EmptiedTensor, *, is_input: bool) -> bool:
    """Return True if the values of a few samples leave almost no resolution for the other samples."""
    if is_input:
        return 0 < emptied.left <= _SURVIVING * emptied.alive
    peaks = sorted(emptied.peaks, reverse=True)
    culprits = max(1, int(_CULPRITS * len(peaks)))
    return len(peaks) >= _FEWEST and 0 < peaks[culprits] * _APART <= peaks[culprits - 1]


def _refusal(model: Model, tensor: str, emptied: _EmptiedTensor) -> InputFileError:
    nodes = dict.fromkeys(use.node.name for use in model.view.uses(tensor))
    return InputFileError(
        f"the value {emptied.value:.6g} in the tensor {tensor!r} makes its range so large that almost all other values become "
        f"zero: {emptied.left} of {count_noun(emptied.alive, 'nonzero value')} would remain",
        fix="correct or remove the sample; if the value is correct, keep the nodes that read this tensor float: "
        f"{excluding(nodes)}",
        where=emptied.sample,
    )
