"""Parts of a sample source: disjoint halves to choose and to check on, or a few evenly spaced samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from qdqtool.calibration.samples.opening import Samples
from qdqtool.core.protocols import Sample, SampleSource


@dataclass(frozen=True, slots=True)
class SamplePart:
    """Every `step`-th sample from number `first` on.

    The first and second half of a data set could differ, because data sets are often sorted.

    Attributes:
        whole: where the samples come from.
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
