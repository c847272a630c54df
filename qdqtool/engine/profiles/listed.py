"""A JSON object of layer names with a list of milliseconds each, as profiling scripts around IProfiler write it.

{"conv1 + relu1": [0.0512, 0.0512, 0.0522], "pool1": [0.01, 0.01, 0.01]}
"""

from __future__ import annotations

import json
from statistics import fmean, median

from qdqtool.core.timing import Profile, ProfileRow
from qdqtool.engine.profiles.numbers import number

FORM = "lists"


def recognizes(text: str) -> bool:
    """Return whether `text` is an object and all its values are lists of times."""
    return _times(text) is not None


def read(text: str) -> Profile:
    """Return mean and median of every list."""
    times = _times(text) or {}
    rows = [
        ProfileRow(name=name, average_ms=fmean(values), median_ms=median(values), total_ms=sum(values))
        for name, values in times.items()
    ]
    counts = {len(values) for values in times.values()}
    return Profile(rows=tuple(rows), iterations=counts.pop() if len(counts) == 1 else None, form=FORM)


def _times(text: str) -> dict[str, list[float]] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found: dict[str, list[float]] = {}
    for name, entries in value.items():
        times = [number(entry) for entry in entries] if isinstance(entries, list) else []
        known = [time for time in times if time is not None]
        if not known or len(known) != len(times):
            return None
        found[name] = known
    return found or None
