"""`nsys export --type json` of Nsight Systems, and `jsonlines`: one event a line.

    {"data": ["cudaLaunchKernel", "conv1 + relu1", ...]}
    {"Type": 59, "NvtxEvent": {"Timestamp": "110", "EndTimestamp": "120", "TextId": "1", "GlobalTid": "...", "DomainId": "2"}}
    {"Type": 48, "TraceProcessEvent": {"startNs": "112", "correlationId": 9, "globalTid": "...", "name": "0"}}
    {"Type": 79, "CudaEvent": {"startNs": "600", "endNs": "900", "correlationId": 9, "globalPid": "...", "kernel": {}}}

Numbers of 64 bits are written as text. Names stand in the events (`Text`) or in a table of texts (`data`), to which
they point by number (`TextId`). The events mean what the tables of the SQLite export mean, and give the same times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qdqtool.core.timing import Profile
from qdqtool.engine.profiles.nsight import DOMAIN, PUSH_POP, TENSORRT, Launch, Range, in_order, profile_of
from qdqtool.errors import InputFileError
from qdqtool.io.text import LARGEST, TextSource, too_large

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


def recognizes(head: str) -> bool:
    """Return whether a text with this beginning has this form."""
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
                    f"holds more than {_MOST:,} events",
                    fix="export it as a database, which is read without taking all of it into memory: "
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
        """Keep the data of one line."""
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
        """Return the ranges of TensorRT, or all ranges if no domain has its name."""
        ours = {domain for domain, name in self._domains if self._text(name) == TENSORRT}
        return in_order(
            (thread, start, end, text)
            for thread, start, end, name, domain in self._ranges
            if (text := self._text(name)) and (not ours or domain in ours)
        )

    def launches(self) -> list[Launch]:
        """Return the calls that launched kernels."""
        found = (
            (*self._calls[process, call], float(ns))
            for process, call, ns in self._kernels
            if (process, call) in self._calls
        )
        return sorted(found)

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
    """Yield complete lines of a text of any size: the table of texts is one line."""
    held: list[str] = []
    size = 0
    for piece in TextSource(path).pieces():
        whole, newline, rest = piece.rpartition("\n")
        if newline:
            yield from ("".join(held) + whole).split("\n")
            held, size = [], 0
        held.append(rest)
        size += len(rest)
        if size > LARGEST:
            raise too_large(path)
    yield "".join(held)


def _object(line: str) -> dict[str, Any]:
    """Parse the object on a line, which may be an element of a list that spans the lines."""
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
