"""Big files, read by several processes: each takes whole runs.

A file is cut in front of the line of a run's banner, where a reader begins anew anyway, so the digests are the same as
those of one reader.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO

from qdqtool.buildlog.reader import Reader
from qdqtool.buildlog.source import LogSource, is_plain
from qdqtool.core.buildlog import RunDigest

BIG = 48 << 20
"""Bytes from which a file is worth several processes."""
WORKERS = 2
"""Processes at most; each takes about 60 MiB, and the file is read at the speed of memory soon."""
PART = 12 << 20
"""Bytes of a part, about."""
_BANNER = b"\n&&&& RUNNING "
"""A banner at the beginning of its line, where a shell puts it."""
PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Bytes `begin` to `end` of a file, whose first line has the number `first_line`."""

    path: Path
    begin: int
    end: int
    first_line: int


def parts_of(path: Path) -> tuple[Part, ...]:
    """Parts of about 12 MiB, each but the first beginning with a run's banner; one part where that cannot be."""
    size = _size(path)
    cuts = [(0, 1)]
    with path.open("rb", buffering=0) as stream:
        if is_plain(stream.read(4096)):
            stream.seek(0)
            cuts += _cuts(stream)
    ends = [begin for begin, _ in cuts[1:]] + [size]
    return tuple(
        Part(path=path, begin=begin, end=end, first_line=line)
        for (begin, line), end in zip(cuts, ends, strict=True)
    )


def digests_of(path: Path) -> Iterator[RunDigest]:
    """The digests of a file's runs in order, made by several processes where the file is big and has several runs."""
    parts = parts_of(path) if _size(path) > BIG and (os.cpu_count() or 1) > 1 else ()
    if len(parts) < 2:
        with _without_collection():
            yield from (run.digest() for run in Reader(LogSource(path)).runs())
        return
    waiting = deque(parts)
    running: deque[Future[list[RunDigest]]] = deque()
    number = 0
    with ProcessPoolExecutor(WORKERS, mp_context=multiprocessing.get_context("spawn")) as pool:
        while waiting or running:
            while waiting and len(running) < 2 * WORKERS:
                running.append(pool.submit(digests_of_part, waiting.popleft()))
            for digest in running.popleft().result():
                number += 1
                yield replace(digest, number=number)


def digests_of_part(part: Part) -> list[RunDigest]:
    """The digests of the runs in one part, numbered from 1."""
    source = LogSource(part.path, begin=part.begin, end=part.end)
    with _without_collection():
        return [run.digest() for run in Reader(source, first_line=part.first_line).runs()]


@contextmanager
def _without_collection() -> Iterator[None]:
    """No search for reference cycles: reading makes none, and looking for them takes a sixth of its time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _size(path: Path) -> int:
    """Bytes of a file; 0 where there is none, so that whoever opens it says why."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cuts(stream: BinaryIO | RawIOBase) -> Iterator[tuple[int, int]]:
    """Where parts begin, and the number of their first line."""
    at, line, last = 0, 1, 0
    rest = b""
    while piece := stream.read(PIECE):
        block = rest + piece
        whole = block.rfind(b"\n") + 1
        found = block.find(_BANNER, 0, whole) + 1 if at + whole - last > PART else 0
        if found:
            last = at + found
            yield last, line + block.count(b"\n", 0, found)
        line += block.count(b"\n", 0, whole)
        at += whole
        rest = block[whole:]
