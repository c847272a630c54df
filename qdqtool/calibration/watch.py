"""Keeps values of some samples during the pass that counts, so that these samples need no second run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrators.kernels import means_of_blocks, peaks_of_blocks
from qdqtool.core.protocols import Feeds, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class WatchedSample:
    """A sample with the values of the watched tensors and the means of the averaged tensors."""

    sample: Sample
    values: dict[str, NDArray[Any]]


class WatchedValues:
    """Values and channel means of chosen tensors for some samples, and values for the first two samples as one batch.

    Args:
        tensors: outputs of the model that is run.
        averaged: images of which the mean of every channel is kept: of those that are counted.
        peaked: images of which the largest magnitude of every channel is kept, over the first `first` samples.
        first: how many these are.
        together: those that a batch of the first two samples is asked for; none to run no such batch.
        numbers: positions of the samples.
    """

    def __init__(
        self,
        tensors: Iterable[str],
        averaged: Iterable[str],
        together: Sequence[str],
        numbers: range,
        *,
        peaked: Iterable[str] = (),
        first: int = 0,
    ) -> None:
        self.tensors = frozenset(tensors)
        self.averaged = frozenset(averaged)
        self.together = tuple(together)
        self.numbers = numbers
        self._peaked = frozenset(peaked)
        self._first = first
        self._peaks: dict[int, dict[str, NDArray[np.float32]]] = {}
        self._coming: dict[int, tuple[int, Sample]] = {}
        self._seen: dict[int, WatchedSample] = {}
        self.pair: dict[str, NDArray[Any]] | None = None

    @property
    def seen(self) -> tuple[WatchedSample, ...]:
        """Samples that were run, in order."""
        return tuple(self._seen[number] for number in sorted(self._seen))

    @property
    def peaks(self) -> dict[str, NDArray[np.float32]]:
        """Largest magnitudes, (channels,), by tensor; empty if no sample was run."""
        return {
            name: np.maximum.reduce([one[name] for one in self._peaks.values()])
            for name in (self._peaked if self._peaks else ())
        }

    def noted(self, positions: range, samples: Iterable[Sample]) -> Iterator[Sample]:
        """Yield the samples, one per position, and register those whose values are to be kept."""
        for number, sample in zip(positions, samples, strict=True):
            if number in self.numbers or number < self._first:
                self._coming[id(sample.feeds)] = (number, sample)
            yield sample

    def keep(self, feeds: Feeds, values: Mapping[str, NDArray[Any]], blocks: Mapping[str, int]) -> None:
        """Copy and average the values, if they belong to a registered sample.

        `blocks` says of tensors that lie in blocks of channels how large these are.
        """
        number, sample = self._coming.pop(id(feeds), (0, None))
        if sample is not None and number < self._first:
            self._peaks[number] = {
                name: peaks_of_channels(values[name], blocks.get(name, 1)) for name in self._peaked
            }
        if sample is not None and number in self.numbers:
            kept = {name: values[name].copy() for name in self.tensors}
            kept |= {name: means_of_channels(values[name], blocks.get(name, 1)) for name in self.averaged}
            self._seen[number] = WatchedSample(sample, kept)


def two_as_one(samples: Iterable[Sample]) -> Feeds | None:
    """Join two samples into one batch; return None if there are fewer, or their shapes do not allow it."""
    first = [sample.feeds for sample in samples][:2]
    if len(first) < 2:
        return None
    one, two = first
    if any(one[name].shape != two[name].shape or not one[name].ndim for name in one):
        return None
    return {name: np.concatenate([one[name], two[name]]) for name in one}


def means_of_channels(values: NDArray[Any], block: int) -> NDArray[np.float32]:
    """Compute the (rows, channels) means of images (rows, channels, ...), whose channels are stored in blocks of `block`."""
    rows, channels = values.shape[:2]
    if block == 1:
        found: NDArray[np.float32] = values.reshape(rows, channels, -1).mean(axis=2, dtype=np.float32)
        return found
    parts = np.require(values, np.float32, ("C", "W")).reshape(rows * channels // block, -1, block)
    return means_of_blocks(parts).reshape(rows, channels)


def peaks_of_channels(values: NDArray[Any], block: int) -> NDArray[np.float32]:
    """Compute the largest magnitude of each channel, (channels,), of images (rows, channels, ...).

    The channels are stored in blocks of `block`.
    """
    rows, channels = values.shape[:2]
    if block == 1:
        parts = values.reshape(rows, channels, -1)
        peaks = np.maximum(parts.max(axis=2), -parts.min(axis=2)).astype(np.float32, copy=False)
    else:
        blocks = np.require(values, np.float32, ("C", "W")).reshape(rows * channels // block, -1, block)
        peaks = peaks_of_blocks(blocks).reshape(rows, channels)
    found: NDArray[np.float32] = peaks.max(axis=0)
    return found
