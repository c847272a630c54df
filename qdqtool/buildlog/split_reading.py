"""Reads large log files in two processes, each of which reads whole runs.

A file is cut before the line of a run's banner, where a reader restarts in any case, so the digests equal those of
one reader.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import RawIOBase
from pathlib import Path
from typing import BinaryIO

from qdqtool.buildlog.reader import LogReader
from qdqtool.core.buildlog import RunDigest
from qdqtool.io.text import TextSource, is_plain

BIG = 32 << 20
"""Smallest size of a file that is read with a second process, in bytes."""
PART = 4 << 20
"""Approximate size of a part, in bytes."""
AHEAD = 2
"""Parts that wait for the second process, so that it is never idle."""
HELD = 8
"""Most finished parts that wait for the digests of an earlier part."""
_BANNER = re.compile(rb"\n&&&& RUNNING [^\n#]{1,200}# [^\n]")
"""A banner at the beginning of a line, as a shell prints it."""
PIECE = 1 << 16
"""Bytes read at once in the search for banners."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FilePart:
    """A part of a log file: bytes `begin` to `end`; its first line has the number `first_line`."""

    path: Path
    begin: int
    end: int
    first_line: int


def parts_of(path: Path) -> Iterator[FilePart]:
    """Yield parts of a log file of about 4 MiB that begin with a run's banner; if impossible, one part."""
    begin, line = 0, 1
    for cut, next_line in _cuts_of(path):
        yield FilePart(path=path, begin=begin, end=cut, first_line=line)
        begin, line = cut, next_line
    yield FilePart(path=path, begin=begin, end=_size(path), first_line=line)


def digests_of(path: Path) -> Iterator[RunDigest]:
    """Yield the summaries of a log file's runs in order. Two processes read a large file."""
    if _size(path) <= BIG or (os.cpu_count() or 1) < 2:
        with _without_collection():
            yield from (run.digest() for run in LogReader(TextSource(path)).runs())
        return
    number = 0
    for digests in _by_two(parts_of(path)):
        for digest in digests:
            number += 1
            yield replace(digest, number=number)


def _by_two(parts: Iterator[FilePart]) -> Iterator[list[RunDigest]]:
    """Yield the summaries of a log's parts in order, read by two processes."""
    done: deque[Future[list[RunDigest]]] = deque()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as second:
        for part in parts:
            if sum(not future.done() for future in done) < AHEAD:
                done.append(second.submit(digests_of_part, part))
            else:
                mine: Future[list[RunDigest]] = Future()
                mine.set_result(digests_of_part(part))
                done.append(mine)
            while done and (done[0].done() or len(done) > HELD):
                yield done.popleft().result()
        while done:
            yield done.popleft().result()


def digests_of_part(part: FilePart) -> list[RunDigest]:
    """Return the summaries of the runs in one part of a log, numbered from 1."""
    source = TextSource(part.path, begin=part.begin, end=part.end)
    with _without_collection():
        return [run.digest() for run in LogReader(source, first_line=part.first_line).runs()]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Switch the garbage collector off in this block; reading creates no cycles."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _size(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist, because opening it later raises the error."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cuts_of(path: Path) -> Iterator[tuple[int, int]]:
    """Yield where a log file can be divided; nothing if it is not plain text."""
    try:
        with path.open("rb", buffering=0) as stream:
            if is_plain(stream.read(4096)):
                stream.seek(0)
                yield from _cuts(stream)
    except OSError:
        return


def _cuts(stream: BinaryIO | RawIOBase) -> Iterator[tuple[int, int]]:
    """Yield the offset of each part of a log file, and the number of its first line.

    The first banner of a file is not a cut: the lines before it may belong to its run.
    """
    # Treat the beginning of the file as the end of a line.
    at, line, kept = -1, 0, b"\n"
    last: int | None = None
    while piece := stream.read(PIECE):
        block = kept + piece
        whole = block.rfind(b"\n") + 1
        is_due = last is None or at + whole - last > PART
        banner = _BANNER.search(block, 0, whole) if is_due else None
        if banner is not None:
            begin = banner.start() + 1
            if last is not None:
                yield at + begin, line + block.count(b"\n", 0, begin)
            last = at + begin
        # Keep the block from the end of its last whole line; of a line longer than a piece, keep one byte.
        taken = whole - 1 if whole > 1 or len(block) <= PIECE else len(block) - 1
        line += block.count(b"\n", 0, taken)
        at += taken
        kept = block[taken:]
