"""A part of some samples, so that what chooses and what checks a choice have no sample in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from qdqtool.calibration.samples.opening import Samples
from qdqtool.core.protocols import Sample, SampleSource


@dataclass(frozen=True, slots=True)
class Part:
    """Every `step`-th sample from number `first` on: data sets are often sorted, so that halves would differ."""

    whole: SampleSource
    first: int
    step: int

    def __len__(self) -> int:
        return len(range(self.first, len(self.whole), self.step))

    def __iter__(self) -> Iterator[Sample]:
        if isinstance(self.whole, Samples):
            return self.whole.every(self.step, self.first)
        return islice(iter(self.whole), self.first, None, self.step)

    @property
    def description(self) -> str:
        """What the samples are, in words."""
        return f"{self.whole.description}, every {self.step}. from number {self.first}"

    @property
    def meaningful(self) -> bool:
        """False for random data."""
        return self.whole.meaningful

    @property
    def digest(self) -> str:
        """Changes whenever the samples or the part change."""
        return f"{self.whole.digest}[{self.first}::{self.step}]"
