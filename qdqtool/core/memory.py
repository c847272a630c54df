"""How much memory this process may take, and giving back what it took."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from qdqtool.errors import UsageError

VARIABLE: Final = "QDQTOOL_MAX_MEMORY"
"""Environment variable that holds the budget; child processes inherit it."""
_CGROUPS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_UNKNOWN: Final = 16 << 30
"""Bytes that are assumed where the system does not say how much memory it has."""
_UNITS: Final = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def budget() -> int:
    """Bytes that the content of input files may take: what the user allowed, else what the machine or container has.

    Readers compare sizes that a file declares with it before they allocate anything.

    Raises:
        UsageError: the environment variable holds no size.
    """
    given = os.environ.get(VARIABLE)
    return parse_size(given) if given else _installed()


@contextmanager
def allowed(size: str | None) -> Iterator[None]:
    """Make `size` the budget inside the block, of child processes too; None changes nothing.

    Raises:
        UsageError: it is no size.
    """
    before = os.environ.get(VARIABLE)
    if size is not None:
        parse_size(size)
        os.environ[VARIABLE] = size
    try:
        yield
    finally:
        if size is not None and before is None:
            del os.environ[VARIABLE]
        elif before is not None:
            os.environ[VARIABLE] = before


def parse_size(text: str) -> int:
    """Bytes of a size as people write it: "8GiB", "500M", "1e9" is not one.

    Raises:
        UsageError: the text is no size above zero.
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * (1 << _UNITS[match[2].upper()])) if match else 0
    if size > 0:
        return size
    raise UsageError(
        f"{text!r} is no size of memory", fix="write it like 8GiB or 500MiB", where="--max-memory"
    )


def _installed() -> int:
    """Bytes of the machine, or of the container where that has less."""
    found = [_UNKNOWN]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for place in map(Path, _CGROUPS):
        limit = place.read_text("ascii").strip() if place.is_file() else ""
        if limit.isdigit():
            found.append(int(limit))
    return min(found)


def give_back() -> None:
    """Return freed memory to the system, where the C library can do that (glibc); elsewhere nothing happens.

    The allocator keeps freed blocks for later. After a large model was dropped that is most of a process's memory,
    and what is allocated next, by another library in larger blocks, does not fit into the holes.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)
