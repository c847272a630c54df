"""Groups samples into batches, and takes parts of a source: halves to choose and to check on, or a few evenly spaced ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from qdqtool.calibration.samples.opening import Samples
from qdqtool.core.protocols import Feeds, Sample, SampleSource


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Samples joined along the first dimension.

    Attributes:
        names: the samples in it.
        feeds: one array per model input.
        labels: one per sample.
        padding: how many copies of the last sample were added to fill a fixed batch size.
    """

    names: tuple[str, ...]
    feeds: Feeds
    labels: tuple[int | None, ...]
    padding: int = 0


def batches(samples: Iterable[Sample], size: int, *, fill: bool = False) -> Iterator[Batch]:
    """Yield batches of `size` samples, in order. The last may be smaller, unless `fill` repeats its last sample.

    Inputs without a batch dimension (rank 0) are taken from the first sample of the group.
    """
    group: list[Sample] = []
    for sample in samples:
        group.append(sample)
        if len(group) == size:
            yield _join_samples(group, 0)
            group = []
    if group:
        yield _join_samples(group, size - len(group) if fill else 0)


def _join_samples(group: list[Sample], padding: int) -> Batch:
    padded = group + [group[-1]] * padding
    feeds = group[0].feeds
    if len(padded) > 1:
        feeds = {
            name: array if array.ndim == 0 else np.concatenate([sample.feeds[name] for sample in padded])
            for name, array in feeds.items()
        }
    return Batch(
        names=tuple(sample.name for sample in group),
        feeds=feeds,
        labels=tuple(sample.label for sample in group),
        padding=padding,
    )


# --- part ------------------------------------------------------------------------------------------------------------
# Parts of a sample source: disjoint halves to choose and to check on, or a few evenly spaced samples.


@dataclass(frozen=True, slots=True)
class SamplePart:
    """Every `step`-th sample from number `first` on.

    The first and second half of a data set could differ, because data sets are often sorted.

    Attributes:
        whole: the source of the samples.
        first: number of the first one.
        step: from one to the next.
        most: how many there are at most; None for all.
    """

    whole: SampleSource
    first: int
    step: int
    most: int | None = None

    def __len__(self) -> int:
        return len(range(self.first, len(self.whole), self.step)[: self.most])

    def __iter__(self) -> Iterator[Sample]:
        if isinstance(self.whole, Samples):
            return islice(self.whole.every(self.step, self.first), self.most)
        return islice(islice(iter(self.whole), self.first, None, self.step), self.most)

    @property
    def description(self) -> str:
        """Description of the samples."""
        return f"{len(self)} of {self.whole.description}, every {self.step}. from number {self.first}"

    @property
    def meaningful(self) -> bool:
        """False for random data."""
        return self.whole.meaningful

    @property
    def digest(self) -> str:
        """Digest that changes whenever the samples or the part change."""
        return f"{self.whole.digest}[{self.first}::{self.step}][:{self.most}]"
