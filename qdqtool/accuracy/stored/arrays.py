"""Stored outputs in .npz files."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.errors import InputFileError

_LARGEST = 8 << 30
"""Bytes of all arrays together."""


def from_npz(path: Path) -> list[dict[str, NDArray[Any]]]:
    """One entry per row where all arrays have the same number of rows, each with a batch dimension of 1; else one.

    Raises:
        InputFileError: unreadable, or holds objects that only running code could restore.
    """
    try:
        with path.open("rb") as stream:
            arrays = _arrays(stream)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputFileError(
            f"is not an .npz file: {error}", fix="write it with numpy.savez", where=str(path)
        ) from error
    rows = {array.shape[0] if array.ndim else None for array in arrays.values()}
    count = next(iter(rows)) if len(rows) == 1 else None
    if count is None:
        return [arrays] if arrays else []
    return [{name: array[row : row + 1] for name, array in arrays.items()} for row in range(count)]


def _arrays(stream: IO[bytes]) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(stream) as listed:
        unpacked = sum(entry.file_size for entry in listed.infolist())
    if unpacked > _LARGEST:
        raise ValueError(f"it unpacks to {unpacked >> 30} GiB")
    stream.seek(0)
    archive = np.load(stream, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ValueError("it is a single array")  # noqa: TRY004 -- the file is wrong, not the program
    with archive:
        return {name: archive[name] for name in archive.files}
