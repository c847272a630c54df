"""Layer times from Nsight Systems: the SQLite export, the table of `nsys stats`, and lines of JSON."""

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

from qdqtool.core.explore import Profile, ProfileRow
from qdqtool.errors import InputFileError
from qdqtool.io.json_files import number
from qdqtool.io.text import LARGEST, TextSource, too_large

# --- nsight ----------------------------------------------------------------------------------------------------------
# Exports of Nsight Systems: the time of the kernels that each NVTX range of TensorRT launched.
#
# TensorRT opens an NVTX range for every layer it enqueues. `nsys export --type sqlite` writes the ranges, the calls
# that launch kernels, and the kernels into tables (NVTX_EVENTS, CUPTI_ACTIVITY_KIND_RUNTIME,
# CUPTI_ACTIVITY_KIND_KERNEL; the schema is described in the exporter's documentation). A kernel belongs to the
# innermost range that was open in the thread that launched it; calls and kernels share a correlation id. `nsys export
# --type json` (or `jsonlines`) writes the same events, one a line: see `nsight_lines`. `nsys stats --report
# nvtx_gpu_proj_sum` or `nvtx_kern_sum` sum that up; their JSON and CSV are read too.
#
#     nsys profile -t cuda,nvtx --cuda-graph-trace=node -o run trtexec --loadEngine=engine.plan
#     nsys export --type sqlite -o run.sqlite run.nsys-rep


NSIGHT = "nsight"
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
# Steps of SQLite's virtual machine between two checks of the limit.
_STEPS = 1 << 14
_MOST_STEPS = 1 << 17
"""SQLite instructions between two checks of the limit, and most checks per query: it runs minutes, not for ever."""
# Milliseconds per unit in the tables of nsys.
_UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3}
_TIMED = re.compile(r"^(Total Proj Time|Total Time) \((\w+)\)$")
_REPORT = re.compile(
    r"^(?=[^\n]*\bRange Instances\b|[^\n]*\bNVTX Inst\b)(?=[^\n]*\bTotal (?:Proj )?Time \()[^\n]*,(?:[^\n]+\n?)*",
    re.MULTILINE,
)
"""The first table of ranges with kernels, up to a blank line: `nsys stats` may print several tables."""
_WHOLE = re.compile(r"^(?:nvinfer1::)?I?ExecutionContext::")
"""Ranges around a whole inference; they contain the ranges of the layers."""


def read_database(path: Path) -> Profile:
    """Return the layer times in a SQLite export of Nsight Systems.

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
            f"the file is not an export of Nsight Systems, or is damaged: {error}",
            fix="export the profile again: nsys export --type sqlite FILE.nsys-rep",
            where=str(path),
        ) from error


def _profile(opened: sqlite3.Connection, where: str) -> Profile:
    tables = {name for (name,) in opened.execute("select name from sqlite_master where type = 'table'")}
    needed = {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL"}
    if needed - tables:
        raise InputFileError(
            f"the file holds no {', no '.join(sorted(needed - tables))}",
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
    for index, ns in _find_launch_ranges(ranges, launches):
        if index is None or _WHOLE.match(ranges[index][3]):
            # A CUDA graph is launched as a whole, by no single layer.
            outside += ns
        else:
            spent[index] += ns
    times: dict[str, list[float]] = defaultdict(list)
    for index in sorted(spent):
        times[ranges[index][3]].append(spent[index] / 1e6)
    return _sum_times(times, outside / 1e6)


def _ranges(opened: sqlite3.Connection, tables: set[str]) -> list[Range]:
    """Return thread, start, end and name of TensorRT's NVTX ranges; of all NVTX ranges if no domain is TensorRT's."""
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
    """Sort NVTX ranges by thread and start, the outer range before the inner one."""
    return sorted(ranges, key=lambda row: (row[0], row[1], -row[2]))


def _launches(opened: sqlite3.Connection) -> Iterator[Launch]:
    columns = {row[1] for row in opened.execute("pragma table_info(CUPTI_ACTIVITY_KIND_KERNEL)")}
    # the process id is above the lowest 24 bits; correlation ids count per process
    process = " and r.globalTid >> 24 = k.globalPid >> 24" if "globalPid" in columns else ""
    yield from opened.execute(
        "select r.globalTid, r.start, k.end - k.start from CUPTI_ACTIVITY_KIND_KERNEL k "  # noqa: S608 -- constants
        f"join CUPTI_ACTIVITY_KIND_RUNTIME r on r.correlationId = k.correlationId{process} "
        "order by r.globalTid, r.start"
    )


def _find_launch_ranges(
    ranges: list[Range], launches: Iterable[Launch]
) -> Iterator[tuple[int | None, float]]:
    """Yield, for each launch, the innermost range around it (its index in `ranges`) and the kernel's nanoseconds."""
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


def _sum_times(times: Mapping[str, list[float]], outside: float) -> Profile:
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
    notes = ["times are the times of the kernels launched inside each NVTX range"]
    if outside:
        notes.append(
            f"{outside / (outside + total):.0%} of the kernels' time was launched outside the ranges; CUDA graphs hide "
            "them: profile with --cuda-graph-trace=node, or without graphs"
        )
    iterations = counts.most_common(1)[0][0] if counts else None
    return Profile(rows=rows, iterations=iterations, form=NSIGHT, notes=tuple(notes))


def is_nsight(text: str) -> bool:
    """Return whether `text` is the JSON or CSV of a report of `nsys stats` about ranges."""
    return any(True for _ in _records(text))


def read_nsight(text: str) -> Profile:
    """Read the layer times in a report of `nsys stats`. Omit ranges around whole inferences."""
    totals: dict[str, float] = defaultdict(float)
    instances: dict[str, int] = {}
    medians: dict[str, float | None] = {}
    unread = 0
    for record in _records(text):
        name, total_and_unit = _range_of(record), _total_of(record)
        count = number(_numeric(record.get("Range Instances", record.get("NVTX Inst"))))
        if total_and_unit is None or not name or not count:
            unread += 1
            continue
        if _WHOLE.match(name):
            continue
        total, unit = total_and_unit
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
        rows=rows, iterations=counts.most_common(1)[0][0] if counts else None, form=NSIGHT, unread=unread
    )


def _range_of(record: Mapping[str, Any]) -> str:
    """Return the name of the range without its domain, which reports write before the name."""
    name = str(record.get("Range") or record.get("NVTX Range") or "")
    return name.removeprefix(f"{TENSORRT}:").removeprefix(":")


def _total_of(record: Mapping[str, Any]) -> tuple[float, str] | None:
    for key, value in record.items():
        match = _TIMED.match(str(key))
        total = number(_numeric(value)) if match else None
        if match and total is not None and match[2] in _UNITS:
            return total, match[2]
    return None


def _numeric(value: Any) -> Any:
    """Return a number that a CSV file stores as text."""
    if not isinstance(value, str):
        return value
    try:
        return float(value.replace(",", ""))
    except ValueError:
        return None


def _records(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of an Nsight report that name a range and a time."""
    rows: list[Any] = []
    if text.lstrip().startswith("["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return
        rows = value if isinstance(value, list) else []
    elif report := _REPORT.search(text):
        try:
            rows = list(csv.DictReader(io.StringIO(report[0])))
        except csv.Error:
            return
    for row in rows:
        if isinstance(row, dict) and _range_of(row) and any(_TIMED.match(str(key)) for key in row):
            yield row


# --- nsight lines ----------------------------------------------------------------------------------------------------
# `nsys export --type json` of Nsight Systems, and `jsonlines`: one event a line.
#
#     {"data": ["cudaLaunchKernel", "conv1 + relu1", ...]}
#     {"Type": 59, "NvtxEvent": {"Timestamp": "110", "EndTimestamp": "120", "TextId": "1", "GlobalTid": "...", "DomainId": "2"}}
#     {"Type": 48, "TraceProcessEvent": {"startNs": "112", "correlationId": 9, "globalTid": "...", "name": "0"}}
#     {"Type": 79, "CudaEvent": {"startNs": "600", "endNs": "900", "correlationId": 9, "globalPid": "...", "kernel": {}}}
#
# Numbers of 64 bits are written as text. Names stand in the events (`Text`) or in a table of texts (`data`), to which
# they point by number (`TextId`). The events mean what the tables of the SQLite export mean, and give the same times.


LOOKED_AT = 1 << 20
"""Characters at the beginning of a text that identify this form."""
_BEGINS = re.compile(r'[\s\[]*\{\s*"(?:Type|data|files)"\s*:')
_EVENT = re.compile(r'"(?:NvtxEvent|TraceProcessEvent|CudaEvent)"\s*:')
_TEXTS = re.compile(r'[\s\[]*\{\s*"data"\s*:')
_SAME_PROCESS = 24
"""Bits of a global thread id below its process: correlation ids count per process."""
_MOST = 10_000_000
"""Most events that are kept: some gigabytes of memory."""
_Found = tuple[int, int, int, str | int, int]
"""Thread, start, end, name or its number, domain."""


def is_nsight_lines(head: str) -> bool:
    """Return True if a file that begins with `head` is a JSON-lines export of Nsight Systems."""
    return _BEGINS.match(head) is not None and _EVENT.search(head) is not None


def read_lines(path: Path) -> Profile:
    """Return the times in a JSON-lines export; lines that are not events are skipped.

    Raises:
        InputFileError: unreadable, or too large to be read without a database.
    """
    events = _Events()
    for line in _lines(path):
        if _EVENT.search(line, 0, 4096) or _TEXTS.match(line):
            events.take(_object(line))
            if len(events) > _MOST:
                raise InputFileError(
                    f"the file holds more than {_MOST:,} events",
                    fix="export the profile as a database, which can be read in parts: "
                    "nsys export --type sqlite FILE.nsys-rep",
                    where=str(path),
                )
    return profile_of(events.ranges(), events.launches())


class _Events:
    """Ranges, calls and kernels from the events of an export."""

    def __init__(self) -> None:
        self._texts: list[Any] = []
        self._ranges: list[_Found] = []
        self._domains: list[tuple[int, str | int]] = []
        # thread and start of the call with a correlation id, of each process; under None for kernels that name none
        self._calls: dict[tuple[int | None, int], tuple[int, int]] = {}
        self._kernels: list[tuple[int | None, int, int]] = []

    def __len__(self) -> int:
        return len(self._ranges) + len(self._calls) + len(self._kernels) + len(self._domains)

    def take(self, event: dict[str, Any]) -> None:
        """Store the range, call, kernel or texts of one line of an Nsight Systems export."""
        texts = event.get("data")
        if isinstance(texts, list) and not self._texts:
            self._texts = texts
        for key, keep in (
            ("NvtxEvent", self._range),
            ("TraceProcessEvent", self._call),
            ("CudaEvent", self._kernel),
        ):
            inner = event.get(key)
            if isinstance(inner, dict):
                keep(inner, _integer(event.get("Type")))

    def ranges(self) -> list[Range]:
        """Return the NVTX ranges of TensorRT; all ranges if no domain has its name."""
        ours = {domain for domain, name in self._domains if self._text(name) == TENSORRT}
        return in_order(
            (thread, start, end, text)
            for thread, start, end, name, domain in self._ranges
            if (text := self._text(name)) and (not ours or domain in ours)
        )

    def launches(self) -> list[Launch]:
        """Return the calls that launched kernels."""
        launches = (
            (*self._calls[process, call], float(ns))
            for process, call, ns in self._kernels
            if (process, call) in self._calls
        )
        return sorted(launches)

    def _range(self, event: dict[str, Any], kind: int | None) -> None:
        kind = _integer(event.get("Type")) if kind is None else kind
        number = _integer(event.get("TextId"))
        name = str(event.get("Text") or "") or (number if number is not None else "")
        domain = _integer(event.get("DomainId")) or 0
        if kind == DOMAIN:
            self._domains.append((domain, name))
        start, end, thread = (_integer(event.get(key)) for key in ("Timestamp", "EndTimestamp", "GlobalTid"))
        if kind == PUSH_POP and start is not None and end is not None and thread is not None:
            self._ranges.append((thread, start, end, name, domain))

    def _call(self, event: dict[str, Any], _kind: int | None) -> None:
        start, thread, call = (_integer(event.get(key)) for key in ("startNs", "globalTid", "correlationId"))
        if start is not None and thread is not None and call is not None:
            self._calls[thread >> _SAME_PROCESS, call] = thread, start
            self._calls.setdefault((None, call), (thread, start))

    def _kernel(self, event: dict[str, Any], _kind: int | None) -> None:
        if "kernel" not in event:
            return
        start, end, call = (_integer(event.get(key)) for key in ("startNs", "endNs", "correlationId"))
        process = _integer(event.get("globalPid"))
        if start is not None and end is not None and call is not None:
            of = None if process is None else process >> _SAME_PROCESS
            self._kernels.append((of, call, max(0, end - start)))

    def _text(self, name: str | int) -> str:
        if isinstance(name, str):
            return name
        return str(self._texts[name]) if 0 <= name < len(self._texts) else ""


def _lines(path: Path) -> Iterator[str]:
    """Yield complete lines from a text of any size."""
    held: list[str] = []
    size = 0
    for piece in TextSource(path).pieces():
        whole, newline, tail = piece.rpartition("\n")
        if newline:
            yield from ("".join(held) + whole).split("\n")
            held, size = [], 0
        held.append(tail)
        size += len(tail)
        if size > LARGEST:
            raise too_large(path)
    yield "".join(held)


def _object(line: str) -> dict[str, Any]:
    """Parse a JSON object that is on one line, also inside a list over several lines."""
    try:
        value = json.loads(line.strip(" \t\r[,").rstrip("]"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _integer(value: Any) -> int | None:
    """Parse a number, or a number that is written as text."""
    if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdigit():
        return int(value)
    return value if type(value) is int and 0 <= value < 1 << 64 else None
