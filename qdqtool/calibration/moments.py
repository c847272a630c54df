"""Second moments of layer inputs. They show the input directions in which weights must be exact.

The moments of a layer are `mean(x.T @ x)` over rows of its input: positions of a convolution, rows of a matrix. They
are large (columns x columns), so layers are visited in parts whose moments fit into memory together, each with a pass
over the samples. If that is asked for, the columns of a wide layer fall into sections, and products across sections are
not formed: of a feed-forward layer of 3072 inputs three sections cost a ninth of the arithmetic of rounding and a third
of that of the moments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.session import Fetcher, open_collecting
from qdqtool.core.protocols import Sample
from qdqtool.graph.instrumented.probe import probe
from qdqtool.graph.products import InputReading, WeightedLayer
from qdqtool.platform import processors

if TYPE_CHECKING:
    from qdqtool.graph.view import Model

ROOM: Final = 1 << 30
"""Largest size of the moments of one part, in bytes."""
SAMPLES: Final = 256
"""Largest number of samples to run; fewer if every layer has enough rows earlier."""
_ROWS: Final = 8192
"""Number of input rows that are enough for a layer, unless it has more columns."""
# Least number of rows per column: with fewer rows, the moments describe only these samples.
_PER_COLUMN: Final = 4
_TOGETHER: Final = 512
"""Number of rows multiplied at once; with fewer, adding to the moments takes longer than the multiplications."""
_SPREAD: Final = 32
"""Smallest number of samples that the rows come from."""

_SLIVER: Final = 4
"""Divisor that limits narrow sections: a section has more than `widest // _SLIVER` columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """Sums of products of one layer's input channels, which GPTQ rounding needs.

    Attributes:
        square: (groups x sections, width, width): mean products of the values that the weights multiply. Without
            sections, the width is the number of columns.
        amax: largest magnitude of every column, (groups, columns).
        rows: how many rows were seen.
    """

    square: NDArray[np.float32]
    amax: NDArray[np.float32]
    rows: int

    @property
    def trusted(self) -> NDArray[np.float32]:
        """The second moments, with products of two different columns reduced: few rows make these uncertain.

        The factor is n / (n + c) for n rows and c columns in a section.
        """
        columns = self.square.shape[1]
        share = np.float32(self.rows / max(1, self.rows + columns))
        shrunk = self.square * share
        diagonal = np.arange(columns)
        shrunk[:, diagonal, diagonal] = np.diagonal(self.square, axis1=1, axis2=2)
        return shrunk

    @property
    def energy(self) -> NDArray[np.float32]:
        """Mean square of every input column, as an array (groups, columns)."""
        return np.diagonal(self.square, axis1=1, axis2=2).reshape(self.amax.shape)

    def sections(self, matrix: NDArray[Any]) -> NDArray[Any]:
        """Divide the columns of a (groups, rows, columns) array into sections, as in `square`.

        The result has the shape (groups x sections, rows, width).

        A single column is repeated for each section.
        """
        groups, rows, columns = matrix.shape
        count = self.amax.shape[1] // self.square.shape[1]
        if columns == 1:
            return np.repeat(matrix, count, axis=0)
        split = matrix.reshape(groups, rows, count, columns // count)
        return np.ascontiguousarray(np.swapaxes(split, 1, 2)).reshape(groups * count, rows, columns // count)

    def joined(self, split: NDArray[Any]) -> NDArray[Any]:
        """Join the sections of an array that `sections` divided; the number of rows may have changed."""
        groups, columns = self.amax.shape
        count = columns // split.shape[2]
        whole = np.swapaxes(split.reshape(groups, count, -1, split.shape[2]), 1, 2)
        return np.ascontiguousarray(whole).reshape(groups, -1, columns)


def parts(
    layers: Sequence[WeightedLayer], room: int = ROOM, widest: int | None = None
) -> list[tuple[WeightedLayer, ...]]:
    """Split the layers, in graph order, into parts whose second moments fit into `room` bytes.

    A layer too large for `room` is omitted.

    `widest` has the meaning that it has in `moments`.
    """
    split: list[list[WeightedLayer]] = [[]]
    used: dict[InputReading, int] = {}
    for layer in layers:
        size = _bytes(layer, widest)
        if size > room:
            continue
        if layer.reading not in used and sum(used.values()) + size > room:
            split.append([])
            used = {}
        used[layer.reading] = size
        split[-1].append(layer)
    return [tuple(part) for part in split if part]


def moments(
    model: Model,
    layers: Sequence[WeightedLayer],
    samples: Sequence[Sample],
    *,
    widest: int | None = None,
) -> dict[InputReading, Moments]:
    """Measure the moments of all inputs of these layers, in one ordered pass over the samples.

    Layers with more columns than `widest` are divided into sections of at most `widest` columns. The pass ends after
    256 samples, or when there are enough rows of every input.

    Raises:
        InputFileError: the model cannot run on a sample.
    """
    columns = {layer.reading: layer.columns for layer in layers}
    tallies = {reading: _Tally(reading, count, _width(count, widest)) for reading, count in columns.items()}
    fed = {info.name for info in model.view.inputs}
    fetched = tuple(dict.fromkeys(reading.tensor for reading in columns if reading.tensor not in fed))
    readings: dict[str, list[_Tally]] = {}
    for reading, tally in tallies.items():
        readings.setdefault(reading.tensor, []).append(tally)
    with _fetcher(model, fetched) as fetcher:
        for sample in samples[:SAMPLES]:
            if all(tally.is_full for tally in tallies.values()):
                break
            values: Iterator[tuple[str, NDArray[Any]]] = (
                iter(fetcher.run(sample.feeds, sample.name)) if fetcher else iter(())
            )
            for name, value in (*((name, sample.feeds[name]) for name in readings if name in fed), *values):
                for tally in readings[name]:
                    tally.add(value)
    return {reading: tally.moments() for reading, tally in tallies.items()}


@contextmanager
def _fetcher(model: Model, tensors: tuple[str, ...]) -> Iterator[Fetcher | None]:
    if not tensors:
        yield None
        return
    with TemporaryDirectory(prefix="qdqtool-") as folder:
        probed = probe(model, tensors, Path(folder), staying=True)
        assert isinstance(probed.source, Path)
        session = open_collecting(probed.source, processors(), probed.home)
        yield Fetcher(session, tensors)


class _Tally:
    """Sums up the moments of one layer input over all samples."""

    def __init__(self, reading: InputReading, columns: int, width: int) -> None:
        self._reading = reading
        self._enough = _enough(columns)
        groups = reading.groups
        self._square = np.zeros((groups * columns // width, width, width), np.float32)
        self._amax = np.zeros((groups, columns), np.float32)
        self._rows = 0
        self._waiting: list[NDArray[np.float32]] = []

    @property
    def is_full(self) -> bool:
        return self._rows >= self._enough

    def add(self, value: NDArray[Any]) -> None:
        if self.is_full:
            return
        rows = self._reading.rows(value, self._enough // _SPREAD)
        np.maximum(self._amax, np.abs(rows).max(axis=1, initial=0), out=self._amax)
        self._rows += rows.shape[1]
        # copy outputs that wait for others: the next run may overwrite their memory
        self._waiting.append(rows if rows.shape[1] >= _TOGETHER else rows.copy())
        if sum(rows.shape[1] for rows in self._waiting) >= _TOGETHER:
            self._multiply()

    def _multiply(self) -> None:
        if self._waiting:
            rows = np.concatenate(self._waiting, axis=1) if len(self._waiting) > 1 else self._waiting[0]
            width = self._square.shape[1]
            split = rows.reshape(*rows.shape[:2], -1, width).swapaxes(1, 2).reshape(-1, rows.shape[1], width)
            self._square += np.swapaxes(split, 1, 2) @ split
            self._waiting.clear()

    def moments(self) -> Moments:
        self._multiply()
        self._square /= max(1, self._rows)
        return Moments(square=self._square, amax=self._amax, rows=self._rows)


def multiplications(layer: WeightedLayer) -> int:
    """Estimate the multiplications to measure a layer's second moments and to round its weights by them.

    Assumes that the moments are measured on as many rows as are enough.
    """
    columns, groups = layer.columns, layer.reading.groups
    outputs = prod(layer.shape) // (columns * groups)
    return groups * columns**2 * (_enough(columns) + outputs + columns)


def _enough(columns: int) -> int:
    """Return how many input rows are enough for the second moments of a layer with `columns` columns."""
    return max(_ROWS, _PER_COLUMN * columns)


def _bytes(layer: WeightedLayer, widest: int | None) -> int:
    return 4 * layer.reading.groups * layer.columns * _width(layer.columns, widest)


def _width(columns: int, widest: int | None) -> int:
    """Return the width of the sections into which the columns of a wide layer are divided for its moments.

    Sections have equal width, as wide as possible up to `widest`; a layer that would get very narrow sections
    is not split.
    """
    if widest is None or columns <= widest:
        return columns
    divisors = (width for width in range(widest, widest // _SLIVER, -1) if columns % width == 0)
    return next(divisors, columns)
