"""Axes of charts: positions of values, and round numbers as ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """A range of values and its label. Values on a logarithmic axis are positive, those on a whole one are counts."""

    label: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def at(self, value: float) -> float:
        """Return the position of a value: 0 at the low end, 1 at the high end."""
        low, high, place = (self._scaled(number) for number in (self.low, self.high, value))
        return (place - low) / (high - low) if high > low else 0.5

    def ticks(self) -> tuple[float, ...]:
        """Return about five round numbers inside the range."""
        if self.log:
            return self._decades()
        if not self.high > self.low:
            return (self.low,)
        rough = (self.high - self.low) / 5
        if self.whole:
            rough = max(rough, 1.0)
        unit = 10.0 ** math.floor(math.log10(rough))
        steps = (factor * unit for factor in _STEPS)
        step = next(step for step in steps if step >= rough * (1 - 1e-9) and not (self.whole and step % 1))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(round(number * step, 12) for number in range(first, last + 1))

    def _decades(self) -> tuple[float, ...]:
        """Return powers of ten; if the range is short, also their multiples by 2 and 5."""
        low, high = math.log10(self.low), math.log10(self.high)
        first, last = math.floor(low), math.ceil(high)
        factors = (1.0, 2.0, 5.0) if high - low < 3 else (1.0,)
        every = max(1, (last - first) // 6)
        ticks = (factor * 10.0**power for power in range(first, last + 1, every) for factor in factors)
        return tuple(tick for tick in ticks if self.low <= tick <= self.high)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.log else value


def axis_over(label: str, values: Iterable[float], *, log: bool = False) -> Axis:
    """Return an axis that covers all the values; a logarithmic one ignores values that are not positive."""
    found = [value for value in values if not log or value > 0]
    low, high = min(found, default=1.0), max(found, default=1.0)
    if log:
        return Axis(label=label, low=low / 1.6, high=high * 1.6, log=True)
    margin = 0.05 * (high - low) or max(abs(high), 1.0) * 0.05
    return Axis(label=label, low=low - margin, high=high + margin)


def short(value: float) -> str:
    """Format a number for a tick: 1.5, 20k, 3M, 1e-05."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
