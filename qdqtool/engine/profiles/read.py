"""Reads the times of layers from a file, whichever form it has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from qdqtool.core.timing import Profile
from qdqtool.engine.profiles import exported, listed, printed, table
from qdqtool.errors import InputFileError
from qdqtool.io.text import text_of


class ProfileReader(Protocol):
    """What each form offers."""

    def recognizes(self, text: str) -> bool:
        """Whether `text` has this form."""

    def read(self, text: str) -> Profile:
        """The rows in `text`; those that do not fit are counted as unread, nothing raises."""


_WHOLE = re.compile(r'"(?:latencyMs|computeMs|endToEndMs)"')
_READERS: tuple[ProfileReader, ...] = (exported, table, printed, listed)


def read_profile(path: Path) -> Profile:
    """The times that the file at `path` holds.

    Raises:
        InputFileError: unreadable, or in no known form of profile.
    """
    return read_profile_text(text_of(path), where=str(path))


def read_profile_text(text: str, *, where: str) -> Profile:
    """The times that `text` holds; `where` names it in messages.

    Raises:
        InputFileError: `text` is in no known form of profile, or holds no row.
    """
    reader = next((reader for reader in _READERS if reader.recognizes(text)), None)
    profile = reader.read(text) if reader else None
    if (profile is None or not profile.rows) and _WHOLE.search(text, 0, 4096):
        raise InputFileError(
            "holds times of whole inferences, not of layers",
            fix="see them with `qdqtool engine about FILE`; times of layers come from trtexec --exportProfile",
            where=where,
        )
    if profile is None or not profile.rows:
        raise InputFileError(
            "holds no times of layers",
            fix="pass the file of trtexec --exportProfile, or a log of a run with --dumpProfile",
            where=where,
        )
    return profile
