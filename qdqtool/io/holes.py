"""How much of a file is there: sparse files claim more bytes than they hold."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from typing import Protocol

_BLOCK = 512
"""Bytes of what stat(2) calls a block, on every file system."""


class _Handled(Protocol):
    """What has a handle."""

    def fileno(self) -> int:
        """The handle."""


def held_bytes(stream: _Handled, ranges: Iterable[tuple[int, int]], enough: int) -> int:
    """Bytes of an open file's ranges, as (begin, end), that the file holds: each byte once, holes not.

    Counting stops at `enough`. Where the system tells of no holes (Windows, some network shares), there are none.

    Raises:
        OSError: the file cannot be asked.
    """
    told = os.fstat(stream.fileno())
    is_full = not hasattr(os, "SEEK_DATA") or told.st_blocks * _BLOCK >= told.st_size
    total = 0
    for begin, end in _joined(ranges):
        for first, last in ((begin, end),) if is_full else _data(stream.fileno(), begin, end):
            total += last - first
            if total >= enough:
                return total
    return total


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same bytes as ranges in order that do not overlap."""
    done = 0
    for begin, end in sorted(ranges):
        if end > max(begin, done):
            yield max(begin, done), end
            done = end


def _data(handle: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """What of a range is no hole."""
    while begin < end:
        try:
            first = os.lseek(handle, begin, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # nothing but a hole is behind `begin`
        if first >= end:
            return
        begin = min(os.lseek(handle, first, os.SEEK_HOLE), end)
        yield first, begin
