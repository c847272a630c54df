"""The table of trtexec --dumpProfile: `=== Profile (N iterations ) ===`.

The name stands last in recent releases and first in older ones, right-aligned:

    Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer
      193.50       0.0105       0.0098      12.7   conv1

                 Layer   Time (ms)   Avg. Time (ms)   Time %
                 conv1      193.50           0.0105     12.7
"""

from __future__ import annotations

import re

from qdqtool.core.timing import Profile, ProfileRow

FORM = "dumpProfile"
_HEAD = re.compile(r"=== Profile \((\d{1,12}) iterations \) ===")
_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_ONE_NUMBER = re.compile(_NUMBER)
_NAME_LAST = re.compile(rf"^\s*{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s{{1,4}}(\S.*)$")
_PREFIX = re.compile(r"^(?:\[[^\]\n]{1,40}\] )+")


def recognizes(text: str) -> bool:
    """Return whether `text` holds the heading of a trtexec --dumpProfile table."""
    return _HEAD.search(text) is not None


def read(text: str) -> Profile:
    """Read the last table of `text`."""
    *_, head = _HEAD.finditer(text)
    lines = text[head.end() :].splitlines()[1:]
    name_first = bool(lines) and _PREFIX.sub("", lines[0]).strip().startswith("Layer")
    rows: list[ProfileRow] = []
    for line in lines[1:]:
        row = _row(_PREFIX.sub("", line), name_first=name_first)
        if row is None or row.name == "Total":
            break
        rows.append(row)
    return Profile(rows=tuple(rows), iterations=int(head[1]), form=FORM)


def _row(line: str, *, name_first: bool) -> ProfileRow | None:
    cells = _behind_name(line) if name_first else _before_name(line)
    if cells is None:
        return None
    name, total, average, middle, percent = cells
    return ProfileRow(
        name=name.strip(),
        total_ms=float(total),
        average_ms=float(average),
        median_ms=float(middle) if middle else None,
        percent=float(percent),
    )


def _before_name(line: str) -> tuple[str, ...] | None:
    found = _NAME_LAST.match(line)
    return None if found is None else (found[5], *found.groups()[:4])


def _behind_name(line: str) -> tuple[str, ...] | None:
    """Split a row into name and numbers, counted from the end because names may hold numbers. Older tables have no median."""
    words = line.rsplit(maxsplit=4)
    numbers = [word for word in words[-4:] if _ONE_NUMBER.fullmatch(word)]
    if len(words) == 5 and len(numbers) == 4:
        return (words[0], *numbers)
    words = line.rsplit(maxsplit=3)
    if len(words) == 4 and all(map(_ONE_NUMBER.fullmatch, words[1:])):
        return (words[0], words[1], words[2], "", words[3])
    return None
