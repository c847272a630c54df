"""The JSON of trtexec --exportProfile: a count, then one object per layer.

    [{"count": 625}, {"name": "conv1", "timeMs": 12.5, "averageMs": 0.02, "medianMs": 0.02, "percentage": 4.1}, ...]

Releases before 8.5 have no `medianMs`. A file may hold several such arrays one after the other, one per run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from qdqtool.core.timing import Profile, ProfileRow
from qdqtool.core.wording import counted
from qdqtool.engine.profiles.numbers import number

FORM = "exportProfile"
_START = re.compile(r'\[\s*\{\s*"count"\s*:')
_DECODER = json.JSONDecoder(strict=False)
_OBJECT = re.compile(r"[\s,]*(?=\{)")


def recognizes(text: str) -> bool:
    """Return whether `text` holds an array of trtexec --exportProfile."""
    return _START.search(text) is not None


def read(text: str) -> Profile:
    """Read the last array of `text`; a cut one gives its complete rows."""
    starts = [match.start() for match in _START.finditer(text)]
    values = list(_objects(text, starts[-1] + 1))
    rows = [row for row in map(_row, values[1:]) if row is not None]
    iterations = values[0].get("count") if values else None
    several = f"the file holds {counted(len(starts), 'profile')}; the last one is used"
    return Profile(
        rows=tuple(rows),
        iterations=iterations if type(iterations) is int else None,
        form=FORM,
        unread=len(values) - 1 - len(rows) if values else 1,
        notes=(several,) if len(starts) > 1 else (),
    )


def _objects(text: str, at: int) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of the array around `at`, up to its end or to the first damage."""
    while (gap := _OBJECT.match(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, gap.end())
        except (ValueError, RecursionError):
            return
        yield value


def _row(fields: Mapping[str, Any]) -> ProfileRow | None:
    name, average = fields.get("name"), number(fields.get("averageMs"))
    if not isinstance(name, str) or average is None:
        return None
    return ProfileRow(
        name=name,
        average_ms=average,
        median_ms=number(fields.get("medianMs")),
        total_ms=number(fields.get("timeMs")),
        percent=number(fields.get("percentage")),
    )
