"""Everything that differs between Linux, macOS and Windows; no other module asks which system this is."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_STAT, _CMDLINE = Path("/proc/self/stat"), Path("/proc/self/cmdline")
_ARG_START, _ARG_END = 48, 49
"""Fields of /proc/self/stat, counted from 1 as proc(5) does."""


def overwrite_arguments(words: list[str]) -> bool:
    """Replace the argument list that `ps` shows; False where the system offers no way to do it.

    Linux reads the list from the memory of the process, where the process itself may write. macOS and Windows show it
    to the same user and to administrators only.

    Args:
        words: the arguments to show, the program first; they are cut to the length of the old ones.
    """
    try:
        # the name of the program stands in parentheses and may itself hold blanks and parentheses
        fields = _STAT.read_text("utf-8", "replace").rpartition(")")[2].split()
        start, end = int(fields[_ARG_START - 3]), int(fields[_ARG_END - 3])
        known = _CMDLINE.read_bytes()
    except (OSError, ValueError, IndexError):
        return False
    if start <= 0 or end - start != len(known):
        return False
    text = b"\0".join(os.fsencode(word) for word in words)[: len(known) - 1]
    ctypes.memmove(start, text.ljust(len(known), b"\0"), len(known))
    return True
