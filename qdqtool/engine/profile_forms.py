"""Reads the times of layers from a file in any form."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from qdqtool.core.explore import Profile, ProfileRow
from qdqtool.core.wording import Command, count_noun
from qdqtool.engine import nsight
from qdqtool.errors import InputFileError
from qdqtool.io.files import require_file, unreadable
from qdqtool.io.json_files import number, weigh
from qdqtool.io.text import TextSource, text_of

# --- exported --------------------------------------------------------------------------------------------------------
# The JSON of trtexec --exportProfile: a count, then one object per layer.
#
#     [{"count": 625}, {"name": "conv1", "timeMs": 12.5, "averageMs": 0.02, "medianMs": 0.02, "percentage": 4.1}, ...]
#
# Releases before 8.5 have no `medianMs`. A file may hold several such arrays one after the other, one per run.


EXPORTED = "exportProfile"
_START = re.compile(r'\[\s*\{\s*"count"\s*:')
_DECODER = json.JSONDecoder(strict=False)
_OBJECT = re.compile(r"[\s,]*(?=\{)")


def is_exported(text: str) -> bool:
    """Return whether `text` holds an array of trtexec --exportProfile."""
    return _START.search(text) is not None


def read_exported(text: str) -> Profile:
    """Read the last array in `text`. If the array is incomplete, return its complete rows."""
    starts = [match.start() for match in _START.finditer(text)]
    values = list(_objects(text, starts[-1] + 1))
    rows = [row for row in map(_exported_row, values[1:]) if row is not None]
    iterations = values[0].get("count") if values else None
    several = f"the file holds {count_noun(len(starts), 'profile')}; the last one is used"
    return Profile(
        rows=tuple(rows),
        iterations=iterations if type(iterations) is int else None,
        form=EXPORTED,
        unread=len(values) - 1 - len(rows) if values else 1,
        notes=(several,) if len(starts) > 1 else (),
    )


def _objects(text: str, at: int) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of the array around `at`, up to its end or to the first damaged object."""
    while (gap := _OBJECT.match(text, at)) is not None:
        try:
            value, at = _DECODER.raw_decode(text, gap.end())
        except (ValueError, RecursionError):
            return
        yield value


def _exported_row(fields: Mapping[str, Any]) -> ProfileRow | None:
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


# --- listed ----------------------------------------------------------------------------------------------------------
# A JSON object of layer names with a list of milliseconds each, as profiling scripts around IProfiler write it.
#
# {"conv1 + relu1": [0.0512, 0.0512, 0.0522], "pool1": [0.01, 0.01, 0.01]}


LISTS = "lists"


def is_listed(text: str) -> bool:
    """Return True if `text` is a JSON object whose values are all lists of times."""
    return _times(text) is not None


def read_listed(text: str) -> Profile:
    """Return mean and median of the times that a profile lists for every layer."""
    times = _times(text) or {}
    rows = [
        ProfileRow(name=name, average_ms=fmean(values), median_ms=median(values), total_ms=sum(values))
        for name, values in times.items()
    ]
    counts = {len(values) for values in times.values()}
    return Profile(rows=tuple(rows), iterations=counts.pop() if len(counts) == 1 else None, form=LISTS)


def _times(text: str) -> dict[str, list[float]] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    times_of: dict[str, list[float]] = {}
    for name, entries in value.items():
        times = [number(entry) for entry in entries] if isinstance(entries, list) else []
        numbers = [time for time in times if time is not None]
        if not numbers or len(numbers) != len(times):
            return None
        times_of[name] = numbers
    return times_of or None


# --- printed ---------------------------------------------------------------------------------------------------------
# Lines that an IProfiler prints for every layer and inference: `Timing:   37.472us -> conv1 + relu1`.


PRINTED = "printed"
_LINE = re.compile(r"^Timing:\s*(\d{1,12}(?:\.\d{1,9})?)us -> (.+)$", re.MULTILINE)


def is_printed(text: str) -> bool:
    """Return whether `text` holds at least one line of an IProfiler."""
    return _LINE.search(text) is not None


def read_printed(text: str) -> Profile:
    """Return mean and median per name, in the order of first appearance."""
    times: dict[str, list[float]] = defaultdict(list)
    for micros, name in _LINE.findall(text):
        times[name].append(float(micros) / 1000)
    rows = (
        ProfileRow(name=name, average_ms=fmean(values), median_ms=median(values), total_ms=sum(values))
        for name, values in times.items()
    )
    return Profile(rows=tuple(rows), form=PRINTED)


# --- table -----------------------------------------------------------------------------------------------------------
# The table of trtexec --dumpProfile: `=== Profile (N iterations ) ===`.
#
# The name stands last in recent releases and first in older ones, right-aligned:
#
#     Time(ms)     Avg.(ms)   Median(ms)   Time(%)   Layer
#       193.50       0.0105       0.0098      12.7   conv1
#
#                  Layer   Time (ms)   Avg. Time (ms)   Time %
#                  conv1      193.50           0.0105     12.7


TABLE = "dumpProfile"
_HEAD = re.compile(r"=== Profile \((\d{1,12}) iterations \) ===")
_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_ONE_NUMBER = re.compile(_NUMBER)
_NAME_LAST = re.compile(rf"^\s*{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s+{_NUMBER}\s{{1,4}}(\S.*)$")
_PREFIX = re.compile(r"^(?:\[[^\]\n]{1,40}\] )+")


def is_table(text: str) -> bool:
    """Return whether `text` holds the heading of a trtexec --dumpProfile table."""
    return _HEAD.search(text) is not None


def read_table(text: str) -> Profile:
    """Read the last table of `text`."""
    *_, head = _HEAD.finditer(text)
    lines = text[head.end() :].splitlines()[1:]
    name_first = bool(lines) and _PREFIX.sub("", lines[0]).strip().startswith("Layer")
    rows: list[ProfileRow] = []
    for line in lines[1:]:
        row = _table_row(_PREFIX.sub("", line), name_first=name_first)
        if row is None or row.name == "Total":
            break
        rows.append(row)
    return Profile(rows=tuple(rows), iterations=int(head[1]), form=TABLE)


def _table_row(line: str, *, name_first: bool) -> ProfileRow | None:
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
    match = _NAME_LAST.match(line)
    return None if match is None else (match[5], *match.groups()[:4])


def _behind_name(line: str) -> tuple[str, ...] | None:
    """Split a row of a profile into name and numbers, from the end, because names may contain numbers."""
    words = line.rsplit(maxsplit=4)
    numbers = [word for word in words[-4:] if _ONE_NUMBER.fullmatch(word)]
    if len(words) == 5 and len(numbers) == 4:
        return (words[0], *numbers)
    words = line.rsplit(maxsplit=3)
    if len(words) == 4 and all(map(_ONE_NUMBER.fullmatch, words[1:])):
        return (words[0], words[1], words[2], "", words[3])
    return None


# --- forms -----------------------------------------------------------------------------------------------------------


_WHOLE = re.compile(r'"(?:latencyMs|computeMs|endToEndMs)"')
_READERS: tuple[tuple[Callable[[str], bool], Callable[[str], Profile]], ...] = (
    (is_exported, read_exported),
    (is_table, read_table),
    (is_printed, read_printed),
    (nsight.is_nsight, nsight.read_nsight),
    (is_listed, read_listed),
)
"""Forms of text: how one is recognized, and how its rows are read. Rows with another form are counted as unread; no
error is raised.
"""


def read_profile(path: Path) -> Profile:
    """Return the times of layers in the file at `path`.

    Raises:
        InputFileError: unreadable, or in no known form of profile.
    """
    require_file(path)
    if path.suffix in nsight.REPORTS:
        raise InputFileError(
            "the file is a report that only Nsight Systems can read",
            fix=f"export the report: nsys export --type sqlite {path.name}",
            where=str(path),
        )
    try:
        with path.open("rb") as stream:
            is_database = stream.read(len(nsight.MAGIC)) == nsight.MAGIC
    except OSError as error:
        raise unreadable(path, error) from error
    if is_database:
        profile = nsight.read_database(path)
    elif nsight.is_nsight_lines(next(TextSource(path).pieces())[: nsight.LOOKED_AT]):
        profile = nsight.read_lines(path)
    else:
        return read_profile_text(text_of(path), where=str(path))
    if not profile.rows:
        raise InputFileError(
            "the file holds no kernel inside an NVTX range",
            fix="profile with `nsys profile -t cuda,nvtx --cuda-graph-trace=node`",
            where=str(path),
        )
    return profile


def read_profile_text(text: str, *, where: str) -> Profile:
    """Return the layer times in `text`; `where` names the source of the text in messages.

    Raises:
        InputFileError: `text` is in no known form of profile, or holds no row, or would fill the memory.
    """
    weigh(text, where)
    reader = next((read for recognizes, read in _READERS if recognizes(text)), None)
    profile = reader(text) if reader else None
    if (profile is None or not profile.rows) and _WHOLE.search(text, 0, 4096):
        raise InputFileError(
            "the file holds times of whole inferences, not of layers",
            fix=f"{Command('engine', ('about', 'FILE'))} prints these times; times of layers come from trtexec --exportProfile",
            where=where,
        )
    if profile is None or not profile.rows:
        raise InputFileError(
            "the file holds no times of layers",
            fix="pass the file of trtexec --exportProfile, a log of a run with --dumpProfile, or a SQLite or JSON export of Nsight Systems",
            where=where,
        )
    return profile
