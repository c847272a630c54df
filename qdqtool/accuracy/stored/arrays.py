"""Stored outputs in .npz files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray

from qdqtool.errors import InputFileError
from qdqtool.io.npy import read_elements, read_header

_LARGEST = 2 << 30
"""Bytes of all arrays together."""


def from_npz(path: Path) -> list[dict[str, NDArray[Any]]]:
    """One entry per row where all arrays have the same number of rows, each with a batch dimension of 1; else one.

    Raises:
        InputFileError: unreadable, or holds objects that only running code could restore.
    """
    try:
        with path.open("rb") as stream:
            arrays = _arrays(stream)
    except (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise InputFileError(
            f"is not an .npz file: {error}", fix="write it with numpy.savez", where=str(path)
        ) from error
    rows = {array.shape[0] if array.ndim else None for array in arrays.values()}
    count = next(iter(rows)) if len(rows) == 1 else None
    if count is None:
        return [arrays] if arrays else []
    return [{name: array[row : row + 1] for name, array in arrays.items()} for row in range(count)]


def _arrays(stream: IO[bytes]) -> dict[str, NDArray[Any]]:
    """The arrays by name; their headers are believed only as far as the archive has bytes for them."""
    found = {}
    with zipfile.ZipFile(stream) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        if (unpacked := sum(entry.file_size for entry in entries)) > _LARGEST:
            raise ValueError(f"it unpacks to {unpacked / 2**30:.0f} GiB")
        for entry in entries:
            with archive.open(entry) as member:
                header = read_header(member, entry.file_size)
                found[entry.filename.removesuffix(".npy")] = read_elements(member, header)
    return found
