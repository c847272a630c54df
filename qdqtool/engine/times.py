"""Times of whole inferences: the JSON of trtexec --exportTimes.

[{"startEnqMs": 4.1, ..., "h2dMs": 0, "computeMs": 0.909, "d2hMs": 0, "latencyMs": 0.909}, ...]

Releases up to 8.0 call the transfers by other names and add a time from one to the next:

[{"startInMs": 1.0, ..., "inMs": 0.1, "computeMs": 1.0, "outMs": 0.1, "latencyMs": 1.2, "endToEndMs": 1.3}, ...]
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median
from typing import Any

from qdqtool.core.timing import TimeSpread
from qdqtool.engine.profiles.numbers import number

_QUANTITIES = {
    "latency": ("latencyMs",),
    "compute": ("computeMs",),
    "h2d": ("h2dMs", "inMs"),
    "d2h": ("d2hMs", "outMs"),
    "end to end": ("endToEndMs",),
}
"""What is measured, and what releases call it."""


def spans_of(value: Any) -> tuple[TimeSpread, ...]:
    """Statistics of the times that are there, in milliseconds, in the order of the quantities."""
    records = [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    spans = (_span(name, spellings, records) for name, spellings in _QUANTITIES.items())
    return tuple(span for span in spans if span is not None)


def _span(name: str, spellings: tuple[str, ...], records: list[Mapping[str, Any]]) -> TimeSpread | None:
    told = (number(record.get(spelling)) for record in records for spelling in spellings)
    values = sorted(value for value in told if value is not None)
    if not values:
        return None
    return TimeSpread(
        name=name,
        count=len(values),
        low=values[0],
        high=values[-1],
        mean=fmean(values),
        median=median(values),
        p99=values[min(len(values) - 1, round(0.99 * (len(values) - 1)))],
    )
