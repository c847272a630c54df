"""Measured times of layers and of whole inferences."""

from __future__ import annotations

from dataclasses import dataclass
from math import fsum


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileRow:
    """The time of one layer.

    Attributes:
        name: layer name as the profiler writes it.
        average_ms: mean over the iterations.
        median_ms: median, if the profile has it.
        total_ms: sum over the iterations, if the profile has it.
        percent: share of the whole, if the profile has it.
    """

    name: str
    average_ms: float
    median_ms: float | None = None
    total_ms: float | None = None
    percent: float | None = None

    @property
    def elided(self) -> bool:
        """True if the layer took no time: it was optimized away, which is not the same as being fast."""
        return self.average_ms == 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Times of all layers, in the order of the file.

    The layers of a profiled engine run one by one with a measurement between them, so their sum is larger than the
    time of one undisturbed inference.

    Attributes:
        rows: one per layer.
        iterations: number of inferences; None if the file does not say.
        form: which form was read.
        unread: rows that were not understood.
        notes: what a reader should know.
    """

    rows: tuple[ProfileRow, ...]
    iterations: int | None = None
    form: str = ""
    unread: int = 0
    notes: tuple[str, ...] = ()

    @property
    def total_ms(self) -> float:
        """Sum of the average times of all layers."""
        return fsum(row.average_ms for row in self.rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSpread:
    """Statistics, in milliseconds, of one time over many inferences."""

    name: str
    count: int
    low: float
    high: float
    mean: float
    median: float
    p99: float
