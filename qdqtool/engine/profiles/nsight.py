"""Exports of Nsight Systems: the time of the kernels that each NVTX range of TensorRT launched.

TensorRT opens an NVTX range for every layer it enqueues. `nsys export --type sqlite` writes the ranges, the calls that
launch kernels, and the kernels into tables (NVTX_EVENTS, CUPTI_ACTIVITY_KIND_RUNTIME, CUPTI_ACTIVITY_KIND_KERNEL; the
schema is described in the exporter's documentation). A kernel belongs to the innermost range that was open in the thread
that launched it: calls and kernels share a correlation id. `nsys export --type json` (or `jsonlines`) writes the same
events, one a line: see `nsight_lines`. `nsys stats --report nvtx_gpu_proj_sum` or `nvtx_kern_sum` sum that up; their
JSON and CSV are read too.

    nsys profile -t cuda,nvtx --cuda-graph-trace=node -o run trtexec --loadEngine=engine.plan
    nsys export --type sqlite -o run.sqlite run.nsys-rep
"""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from statistics import fmean, median
from typing import Any
from urllib.parse import quote

from qdqtool.core.timing import Profile, ProfileRow
from qdqtool.engine.profiles.numbers import number
from qdqtool.errors import InputFileError

FORM = "nsight"
MAGIC = b"SQLite format 3\0"
REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")
"""Files that only Nsight Systems reads."""
PUSH_POP, DOMAIN = 59, 75
"""Types of NVTX events: a range opened and closed by one thread, and the name of a domain."""
TENSORRT = "TensorRT"
Range = tuple[int, int, int, str]
"""Thread, start and end in ns, and name."""
Launch = tuple[int, int, float]
"""Thread and time of a call that launched a kernel, and the nanoseconds of the kernel."""
# Steps of SQLite's machine between two looks at the limit.
_STEPS = 1 << 14
_MOST_STEPS = 1 << 17
"""SQLite instructions between two checks of the limit, and most checks per query: it runs minutes, not for ever."""
# Milliseconds in a unit of nsys' own tables.
_UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3}
_TIMED = re.compile(r"^(Total Proj Time|Total Time) \((\w+)\)$")
_WHOLE = re.compile(r"^(?:nvinfer1::)?I?ExecutionContext::")
"""Ranges around a whole inference; they contain the ranges of the layers."""


def read_database(path: Path) -> Profile:
    """Return the times in a SQLite export.

    Raises:
        InputFileError: damaged, no export of Nsight Systems, or one without ranges or kernels.
    """
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
        ) as opened:
            opened.text_factory = lambda content: content.decode("utf-8", "replace")
            left = iter(range(_MOST_STEPS))
            opened.set_progress_handler(lambda: next(left, None) is None, _STEPS)
            opened.execute("pragma trusted_schema = off")
            return _profile(opened, str(path))
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise InputFileError(
            f"is no export of Nsight Systems, or a damaged one: {error}",
            fix="write it again: nsys export --type sqlite FILE.nsys-rep",
            where=str(path),
        ) from error


def _profile(opened: sqlite3.Connection, where: str) -> Profile:
    tables = {name for (name,) in opened.execute("select name from sqlite_master where type = 'table'")}
    wanted = {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"}
    if wanted - tables:
        raise InputFileError(
            f"holds no {', no '.join(sorted(wanted - tables))}",
            fix="trace CUDA and NVTX: nsys profile -t cuda,nvtx, then nsys export --type sqlite",
            where=where,
        )
    return profile_of(_ranges(opened, tables), _launches(opened))


def profile_of(ranges: list[Range], launches: Iterable[Launch]) -> Profile:
    """Return the times of the kernels inside each range.

    Args:
        ranges: sorted by thread and start, the outer before the inner.
        launches: sorted by thread and start.
    """
    spent: dict[int, float] = defaultdict(float)
    outside = 0.0
    # whole nanoseconds, so that the order of the launches does not change the sums
    for index, ns in _launched(ranges, launches):
        if index is None or _WHOLE.match(ranges[index][3]):
            # A CUDA graph is launched as one, by no layer.
            outside += ns
        else:
            spent[index] += ns
    times: dict[str, list[float]] = defaultdict(list)
    for index in sorted(spent):
        times[ranges[index][3]].append(spent[index] / 1e6)
    return _summed(times, outside / 1e6)


def _ranges(opened: sqlite3.Connection, tables: set[str]) -> list[Range]:
    """Return thread, start, end and name of the ranges of TensorRT, or of all ranges if no domain has its name."""
    columns = {row[1] for row in opened.execute("pragma table_info(NVTX_EVENTS)")}
    texts = "textId" in columns and "StringIds" in tables
    name = "coalesce(n.text, s.value)" if texts else "n.text"
    join = " left join StringIds s on n.textId = s.id" if texts else ""
    source = f"from NVTX_EVENTS n{join} where n.eventType = ?"
    domain = "n.domainId" if "domainId" in columns else "0"
    ours = {
        number
        for number, text in opened.execute(f"select {domain}, {name} {source}", (DOMAIN,))
        if text == TENSORRT
    }
    rows = opened.execute(f"select n.globalTid, n.start, n.end, {name}, {domain} {source}", (PUSH_POP,))
    return in_order(
        (int(thread), int(start), int(end), str(text))
        for thread, start, end, text, number in rows
        if end is not None and text and (not ours or number in ours)
    )


def in_order(ranges: Iterable[Range]) -> list[Range]:
    """Sort ranges as `profile_of` expects them."""
    return sorted(ranges, key=lambda row: (row[0], row[1], -row[2]))


def _launches(opened: sqlite3.Connection) -> Iterator[Launch]:
    columns = {row[1] for row in opened.execute("pragma table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
    # the process stands above the lowest 24 bits; correlation ids count per process
    process = " and r.globalTid >> 24 = k.globalPid >> 24" if "globalPid" in columns else ""
    yield from opened.execute(
        "select r.globalTid, r.start, k.end - k.start from CUPTI_ACTIVITY_KIND_KERNEL k "  # noqa: S608 -- constants
        f"join CUPTI_ACTIVITY_KIND_RUNTIME r on r.correlationId = k.correlationId{process} "
        "order by r.globalTid, r.start"
    )


def _launched(ranges: list[Range], launches: Iterable[Launch]) -> Iterator[tuple[int | None, float]]:
    """Yield the innermost range around each launch as its index in `ranges`, and the nanoseconds of the kernel."""
    place, thread_now = 0, None
    around: list[int] = []
    for thread, start, duration in launches:
        if thread != thread_now:
            thread_now, around = thread, []
            while place < len(ranges) and ranges[place][0] < thread:
                place += 1
        while place < len(ranges) and ranges[place][0] == thread and ranges[place][1] <= start:
            around = [index for index in around if ranges[index][2] >= ranges[place][1]]
            around.append(place)
            place += 1
        around = [index for index in around if ranges[index][2] >= start]
        yield (around[-1] if around else None), max(0.0, float(duration))


def _summed(times: Mapping[str, list[float]], outside: float) -> Profile:
    total = sum(map(sum, times.values()))
    rows = tuple(
        ProfileRow(
            name=name,
            average_ms=fmean(values),
            median_ms=median(values),
            total_ms=sum(values),
            percent=100 * sum(values) / total if total else None,
        )
        for name, values in times.items()
    )
    counts = Counter(len(values) for values in times.values())
    notes = ["times are those of the kernels that were launched inside each NVTX range"]
    if outside:
        notes.append(
            f"{outside / (outside + total):.0%} of the kernels' time was launched outside the ranges; CUDA graphs hide "
            "them: profile with --cuda-graph-trace=node, or without graphs"
        )
    iterations = counts.most_common(1)[0][0] if counts else None
    return Profile(rows=rows, iterations=iterations, form=FORM, notes=tuple(notes))


def recognizes(text: str) -> bool:
    """Return whether `text` is the JSON or CSV of a report of `nsys stats` about ranges."""
    return any(True for _ in _records(text))


def read(text: str) -> Profile:
    """Read the ranges of an `nsys stats` report; ranges around whole inferences are left out."""
    totals: dict[str, float] = defaultdict(float)
    instances: dict[str, int] = {}
    medians: dict[str, float | None] = {}
    unread = 0
    for record in _records(text):
        name, found = _range_of(record), _total_of(record)
        count = number(_numeric(record.get("Range Instances", record.get("NVTX Inst"))))
        if found is None or not name or not count:
            unread += 1
            continue
        if _WHOLE.match(name):
            continue
        total, unit = found
        middle = number(_numeric(record.get(f"Proj Med ({unit})")))
        totals[name] += total * _UNITS[unit]
        medians[name] = None if middle is None else middle * _UNITS[unit]
        instances[name] = max(int(count), instances.get(name, 0))
    rows = tuple(
        ProfileRow(name=name, average_ms=total / instances[name], median_ms=medians[name], total_ms=total)
        for name, total in totals.items()
    )
    counts = Counter(instances.values())
    return Profile(
        rows=rows, iterations=counts.most_common(1)[0][0] if counts else None, form=FORM, unread=unread
    )


def _range_of(record: Mapping[str, Any]) -> str:
    """Return the name of the range; reports write its domain before it."""
    name = str(record.get("Range") or record.get("NVTX Range") or "")
    return name.removeprefix(f"{TENSORRT}:").removeprefix(":")


def _total_of(record: Mapping[str, Any]) -> tuple[float, str] | None:
    for key, value in record.items():
        found = _TIMED.match(str(key))
        total = number(_numeric(value)) if found else None
        if found and total is not None and found[2] in _UNITS:
            return total, found[2]
    return None


def _numeric(value: Any) -> Any:
    """Convert a number that CSV writes as text."""
    if not isinstance(value, str):
        return value
    try:
        return float(value.replace(",", ""))
    except ValueError:
        return None


def _records(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a report that name a range and a time."""
    rows: list[Any] = []
    if text.lstrip().startswith("["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        rows = value if isinstance(value, list) else []
    elif head := re.search(
        r"^(?=[^\n]*\bRange\b)(?=[^\n]*\bTotal (?:Proj )?Time \()[^\n]*,[^\n]*$", text, re.MULTILINE
    ):
        try:
            rows = list(csv.DictReader(io.StringIO(text[head.start() :])))
        except csv.Error:
            return
    for row in rows:
        if isinstance(row, dict) and _range_of(row) and any(_TIMED.match(str(key)) for key in row):
            yield row
