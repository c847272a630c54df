"""Reads the times of layers from a file in any form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Protocol

from qdqtool.core.commands import Command
from qdqtool.core.timing import Profile
from qdqtool.engine.profiles import exported, listed, nsight, nsight_lines, printed, table
from qdqtool.errors import InputFileError
from qdqtool.io.files import require_file, unreadable
from qdqtool.io.json_files import weigh
from qdqtool.io.text import TextSource, text_of


class ProfileReader(Protocol):
    """Interface of each form."""

    def recognizes(self, text: str) -> bool:
        """Return whether `text` has this form."""

    def read(self, text: str) -> Profile:
        """Return the rows in `text`. Rows that do not fit are counted as unread; nothing raises."""


_WHOLE = re.compile(r'"(?:latencyMs|computeMs|endToEndMs)"')
_READERS: tuple[ProfileReader, ...] = (exported, table, printed, nsight, listed)


def read_profile(path: Path) -> Profile:
    """Return the times that the file at `path` holds.

    Raises:
        InputFileError: unreadable, or in no known form of profile.
    """
    require_file(path)
    if path.suffix in nsight.REPORTS:
        raise InputFileError(
            "is a report that only Nsight Systems reads",
            fix=f"export it: nsys export --type sqlite {path.name}",
            where=str(path),
        )
    try:
        with path.open("rb") as stream:
            is_database = stream.read(len(nsight.MAGIC)) == nsight.MAGIC
    except OSError as error:
        raise unreadable(path, error) from error
    if is_database:
        profile = nsight.read_database(path)
    elif nsight_lines.recognizes(next(TextSource(path).pieces())[: nsight_lines.LOOKED_AT]):
        profile = nsight_lines.read_lines(path)
    else:
        return read_profile_text(text_of(path), where=str(path))
    if not profile.rows:
        raise InputFileError(
            "holds no kernel inside an NVTX range",
            fix="profile with `nsys profile -t cuda,nvtx --cuda-graph-trace=node`",
            where=str(path),
        )
    return profile


def read_profile_text(text: str, *, where: str) -> Profile:
    """Return the times that `text` holds; `where` names it in messages.

    Raises:
        InputFileError: `text` is in no known form of profile, or holds no row, or would fill the memory.
    """
    weigh(text, where)
    reader = next((reader for reader in _READERS if reader.recognizes(text)), None)
    profile = reader.read(text) if reader else None
    if (profile is None or not profile.rows) and _WHOLE.search(text, 0, 4096):
        raise InputFileError(
            "holds times of whole inferences, not of layers",
            fix=f"see them with {Command('engine', ('about', 'FILE'))}; times of layers come from trtexec --exportProfile",
            where=where,
        )
    if profile is None or not profile.rows:
        raise InputFileError(
            "holds no times of layers",
            fix="pass the file of trtexec --exportProfile, a log of a run with --dumpProfile, or a SQLite or JSON export of Nsight Systems",
            where=where,
        )
    return profile
