"""Memory that was freed goes back to the system, so that the peak of a step is its own."""

from __future__ import annotations

import ctypes
import sys


def give_back() -> None:
    """Return freed memory to the system, where the C library can do that (glibc); elsewhere nothing happens.

    The allocator keeps freed blocks for later. After a large model was dropped that is most of a process's memory,
    and what is allocated next, by another library in larger blocks, does not fit into the holes.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "malloc_trim"):
            library.malloc_trim(0)
