"""Runners and samples made of plain functions and arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from qdqtool.core.protocols import Feeds, Sample
from qdqtool.core.tensors import TensorInfo

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class Scripted:
    """A runner whose outputs are a function of its input `x`."""

    compute: Callable[[np.ndarray], Outputs]
    outputs: tuple[str, ...] = ("y",)
    description: str = "scripted"
    inputs: tuple[TensorInfo, ...] = (TensorInfo(name="x"),)
    at_once: int = 1

    def run(self, feeds: Feeds) -> Outputs:
        return self.compute(feeds["x"])


@dataclass(frozen=True)
class Given:
    """Samples from a list."""

    samples: Sequence[Sample]
    meaningful: bool = True
    description: str = "given"
    digest: str = field(default="none")

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)


def identity(x: np.ndarray) -> Outputs:
    return {"y": x}


def rows(values: np.ndarray, labels: Sequence[int] | None = None) -> Given:
    """One sample per row, with a batch dimension."""
    return Given(
        [
            Sample(name=f"row{i}", feeds={"x": row[None]}, label=None if labels is None else int(labels[i]))
            for i, row in enumerate(values)
        ]
    )
