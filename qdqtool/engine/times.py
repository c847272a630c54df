"""Times of whole inferences: the JSON of trtexec --exportTimes.

[{"startEnqMs": 4.1, ..., "h2dMs": 0, "computeMs": 0.909, "d2hMs": 0, "latencyMs": 0.909}, ...]
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from qdqtool.core.timing import Span
from qdqtool.engine.decode import read_file
from qdqtool.engine.profiles.numbers import number
from qdqtool.errors import InputFileError

_QUANTITIES = ("latencyMs", "computeMs", "h2dMs", "d2hMs")


def read_times(path: Path) -> tuple[Span, ...]:
    """Statistics of latency, compute, h2d and d2h times in milliseconds, in this order.

    Raises:
        InputFileError: unreadable, or not a list of times.
    """
    try:
        entries = json.loads(read_file(path))
    except (ValueError, RecursionError) as error:
        raise _not_times(path) from error
    records = [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    spans = (_span(name, records) for name in _QUANTITIES)
    found = tuple(span for span in spans if span is not None)
    if not found:
        raise _not_times(path)
    return found


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


def _not_times(path: Path) -> InputFileError:
    return InputFileError(
        "holds no times of inferences", fix="pass the file of trtexec --exportTimes", where=str(path)
    )
