"""Times of whole inferences: the JSON of trtexec --exportTimes.

[{"startEnqMs": 4.1, ..., "h2dMs": 0, "computeMs": 0.909, "d2hMs": 0, "latencyMs": 0.909}, ...]
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median
from typing import Any

from qdqtool.core.timing import Span
from qdqtool.engine.profiles.numbers import number

_QUANTITIES = ("latencyMs", "computeMs", "h2dMs", "d2hMs")


def spans_of(value: Any) -> tuple[Span, ...]:
    """Statistics of latency, compute, h2d and d2h times in milliseconds, in this order; empty where there are none."""
    records = [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []
    spans = (_span(name, records) for name in _QUANTITIES)
    return tuple(span for span in spans if span is not None)


def _span(name: str, records: list[Mapping[str, Any]]) -> Span | None:
    values = sorted(value for value in (number(record.get(name)) for record in records) if value is not None)
    if not values:
        return None
    return Span(
        name=name.removesuffix("Ms"),
        count=len(values),
        low=values[0],
        high=values[-1],
        mean=fmean(values),
        median=median(values),
        p99=values[min(len(values) - 1, round(0.99 * (len(values) - 1)))],
    )
