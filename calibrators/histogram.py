"""Histograms of magnitudes. They add up exactly, for any order, batch size and number of machines.

The range is always a power of two, the smallest one above every magnitude seen, and it is divided into 4096 bins.
So every bin's width is a power of two as well, each bin of a wide histogram is exactly a pair of bins of the next
narrower one, and a histogram depends on nothing but the set of values. Minimum and maximum are kept exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrators import kernels
from calibrators.kernels import BINS, UNSET_EXPONENT


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Histogram:
    """Counts of magnitudes in bins, with the exact minimum and maximum.

    Attributes:
        counts: (4096,) int64; bin i counts magnitudes in [i, i + 1) * width. All zeros when only the extremes
            were collected.
        exponent: the range is [0, 2 ** exponent); None when nothing but zeros was seen.
        low: smallest finite value; 0 when `total` is 0.
        high: largest finite value; 0 when `total` is 0.
        total: number of finite values.
        nan: number of NaN values, not counted above.
        inf: number of infinite values, not counted above.
    """

    counts: NDArray[np.int64]
    exponent: int | None
    low: float
    high: float
    total: int
    nan: int = 0
    inf: int = 0

    @property
    def amax(self) -> float:
        """The largest magnitude, exactly."""
        return max(abs(self.low), abs(self.high))

    @property
    def width(self) -> float:
        """Width of a bin; 0 if all values were zero."""
        return 0.0 if self.exponent is None else math.ldexp(1.0 / BINS, self.exponent)

    @property
    def has_bins(self) -> bool:
        """True if magnitudes were counted in bins; False if only minimum and maximum were recorded."""
        return self.total == 0 or bool(self.counts.any())

    @property
    def used(self) -> NDArray[np.int64]:
        """The counts up to the last bin that is not empty."""
        filled = np.flatnonzero(self.counts)
        return self.counts[: int(filled[-1]) + 1] if filled.size else self.counts[:0]

    @property
    def _numbers(self) -> tuple[object, ...]:
        return (self.exponent, self.low, self.high, self.total, self.nan, self.inf)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Histogram):
            return NotImplemented
        return self._numbers == other._numbers and np.array_equal(self.counts, other.counts)

    __hash__ = None  # type: ignore[assignment]


class Tally:
    """A histogram to which values are added. It is not for two threads: give each thread its own histogram, and merge them."""

    def __init__(self) -> None:
        self._counts = np.zeros(BINS, np.int64)
        self._state = kernels.fresh_state()

    def add(self, values: NDArray[Any], lanes: NDArray[np.uint16]) -> None:
        """Count the magnitudes of an array of any shape. `lanes` is scratch memory from `scratch()`."""
        flat = _flat(values)
        kernels.accumulate(flat, flat.view(np.int32), self._counts, lanes, self._state)

    def add_extremes(self, values: NDArray[Any]) -> None:
        """Record minimum and maximum only. This is several times faster, and enough for the calibrator `max`."""
        kernels.extremes_only(_flat(values).view(np.int32), self._state)

    @property
    def nonfinite(self) -> int:
        """Number of NaN and Inf values."""
        return int(self._state[kernels.NAN] + self._state[kernels.INF])

    def histogram(self) -> Histogram:
        """Return a copy of the counts so far. Values that are added later do not change the copy."""
        state = self._state
        exponent = int(state[kernels.EXPONENT])
        has_values = state[kernels.LOW_KEY] <= state[kernels.HIGH_KEY]
        return Histogram(
            counts=self._counts.copy(),
            exponent=None if exponent == UNSET_EXPONENT else exponent,
            low=_value(state[kernels.LOW_KEY]) if has_values else 0.0,
            high=_value(state[kernels.HIGH_KEY]) if has_values else 0.0,
            total=int(state[kernels.SEEN]),
            nan=int(state[kernels.NAN]),
            inf=int(state[kernels.INF]),
        )


def scratch() -> NDArray[np.uint16]:
    """Return scratch memory for `Tally.add`: one array per thread, shared by all its tallies."""
    return np.zeros((BINS, kernels.LANES), np.uint16)


def histogram_of(values: NDArray[Any]) -> Histogram:
    """Return the histogram of one array."""
    tally = Tally()
    tally.add(values, scratch())
    return tally.histogram()


def merge(first: Histogram, second: Histogram) -> Histogram:
    """Return the histogram of two data sets together; exact, commutative and associative."""
    exponents = [part.exponent for part in (first, second) if part.exponent is not None]
    exponent = max(exponents) if exponents else None
    filled = [part for part in (first, second) if part.total]
    return Histogram(
        counts=_widen(first, exponent) + _widen(second, exponent),
        exponent=exponent,
        low=min((part.low for part in filled), default=0.0),
        high=max((part.high for part in filled), default=0.0),
        total=first.total + second.total,
        nan=first.nan + second.nan,
        inf=first.inf + second.inf,
    )


def empty() -> Histogram:
    """Return the histogram of no data. In `merge` it changes nothing."""
    return Histogram(counts=np.zeros(BINS, np.int64), exponent=None, low=0.0, high=0.0, total=0)


def coarsen(histogram: Histogram, most_bins: int) -> tuple[NDArray[np.int64], float]:
    """Return the used counts in at most `most_bins` bins, and the bin width. Neighbouring bins are added in pairs."""
    counts, width = histogram.used, histogram.width
    while counts.size > most_bins:
        if counts.size % 2:
            counts = np.append(counts, 0)
        counts = counts[0::2] + counts[1::2]
        width *= 2
    return counts, width


def _widen(histogram: Histogram, exponent: int | None) -> NDArray[np.int64]:
    if histogram.exponent is None or exponent is None or histogram.exponent == exponent:
        return histogram.counts
    counts = histogram.counts.copy()
    kernels.shrink(counts, exponent - histogram.exponent)
    return counts


def _flat(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return the values as a writable float32 vector: for read-only arrays, numba would compile every loop again."""
    return np.require(values, np.float32, ("C", "W")).reshape(-1)


def _value(key: np.int64) -> float:
    bits = int(key) if key >= 0 else int(key) ^ 0x7FFFFFFF
    return float(np.array([bits], np.int32).view(np.float32)[0]) + 0.0
