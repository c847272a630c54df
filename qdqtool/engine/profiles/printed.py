"""Lines that an IProfiler prints for every layer and inference: `Timing:   37.472us -> conv1 + relu1`."""

from __future__ import annotations

import re
from collections import defaultdict
from statistics import fmean, median

from qdqtool.core.timing import Profile, ProfileRow

FORM = "printed"
_LINE = re.compile(r"^Timing:\s*(\d{1,12}(?:\.\d{1,9})?)us -> (.+)$", re.MULTILINE)


def recognizes(text: str) -> bool:
    """Return whether `text` holds at least one line of an IProfiler."""
    return _LINE.search(text) is not None


def read(text: str) -> Profile:
    """Return mean and median per name, in the order of first appearance."""
    times: dict[str, list[float]] = defaultdict(list)
    for micros, name in _LINE.findall(text):
        times[name].append(float(micros) / 1000)
    rows = (
        ProfileRow(name=name, average_ms=fmean(values), median_ms=median(values), total_ms=sum(values))
        for name, values in times.items()
    )
    return Profile(rows=tuple(rows), form=FORM)
