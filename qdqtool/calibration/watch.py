"""What the pass over the samples keeps of some of them, beside counting: nobody has to run these a second time."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrators.kernels import means_of_blocks
from qdqtool.core.protocols import Feeds, Sample

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Seen:
    """A sample with the values of the watched tensors, and the means of the averaged ones."""

    sample: Sample
    values: dict[str, NDArray[Any]]


class Watch:
    """Values of some tensors and means of others for some samples, and values for the first two samples as one batch.

    Args:
        tensors: outputs of the model that is run.
        averaged: images of which the mean of every channel is kept: of those that are counted.
        together: those that a batch of two samples is asked for; none to run no such batch.
        numbers: positions of the samples.
    """

    def __init__(
        self,
        tensors: Iterable[str],
        averaged: Iterable[str],
        together: Sequence[str],
        numbers: Container[int],
    ) -> None:
        self.tensors = frozenset(tensors)
        self.averaged = frozenset(averaged)
        self.together = tuple(together)
        self._numbers = numbers
        self._coming: dict[int, tuple[int, Sample]] = {}
        self._seen: dict[int, Seen] = {}
        self.pair: dict[str, NDArray[Any]] | None = None

    @property
    def seen(self) -> tuple[Seen, ...]:
        """The samples that were run, in order."""
        return tuple(self._seen[number] for number in sorted(self._seen))

    def noted(self, positions: range, samples: Iterable[Sample]) -> Iterator[Sample]:
        """The samples, one per position, while their feeds are looked out for."""
        for number, sample in zip(positions, samples, strict=True):
            if number in self._numbers:
                self._coming[id(sample.feeds)] = (number, sample)
            yield sample

    def keep(self, feeds: Feeds, values: Mapping[str, NDArray[Any]], blocks: Mapping[str, int]) -> None:
        """Copy and average the values, if they are those of a sample that is looked out for.

        `blocks` says of tensors that lie in blocks of channels how large these are.
        """
        number, sample = self._coming.pop(id(feeds), (0, None))
        if sample is not None:
            kept = {name: values[name].copy() for name in self.tensors}
            kept |= {name: means_of_channels(values[name], blocks.get(name, 1)) for name in self.averaged}
            self._seen[number] = Seen(sample, kept)

    def batch(self) -> Feeds | None:
        """The first two samples as one batch; None where their shapes do not allow it, or nobody asks."""
        first = [one.sample.feeds for one in self.seen[:2]]
        if not self.together or len(first) < 2:
            return None
        one, two = first
        if any(one[name].shape != two[name].shape or not one[name].ndim for name in one):
            return None
        return {name: np.concatenate([one[name], two[name]]) for name in one}


def means_of_channels(values: NDArray[Any], block: int) -> NDArray[np.float32]:
    """(rows, channels) means of images, (rows, channels, ...), whose channels lie in blocks of that size."""
    rows, channels = values.shape[:2]
    if block == 1:
        found: NDArray[np.float32] = values.reshape(rows, channels, -1).mean(axis=2, dtype=np.float32)
        return found
    parts = np.require(values, np.float32, ("C", "W")).reshape(rows * channels // block, -1, block)
    return means_of_blocks(parts).reshape(rows, channels)
