"""Groups samples into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from qdqtool.core.protocols import Feeds, Sample


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
            yield _joined(group, 0)
            group = []
    if group:
        yield _joined(group, size - len(group) if fill else 0)


def _joined(group: list[Sample], padding: int) -> Batch:
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
