"""Samples in .npy and .npz files: one file of many samples, or a folder of them, read row by row.

Rows are streamed, so that a file of any size needs the memory of one sample. Pickled objects are refused.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError
from qdqtool.io.files import require_file
from qdqtool.io.npy import ArrayHeader, read_elements, read_exactly, read_header

_MOST_MEMBERS: Final = 1 << 14
"""Arrays in one file; a model has a few inputs."""
_DAMAGED: Final = (
    OSError,
    ValueError,
    KeyError,
    EOFError,
    RuntimeError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading a damaged, encrypted or strangely packed archive raises."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One array of a file, not read yet.

    Attributes:
        path: the .npy or .npz file.
        key: the array's name inside an .npz; "" for an .npy.
        header: its shape and type, which fit the size of the file.
    """

    path: Path
    key: str
    header: ArrayHeader

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions of the array."""
        return self.header.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its elements."""
        return self.header.dtype

    def whole(self) -> NDArray[Any]:
        """All of it.

        Raises:
            InputFileError: damaged, or more than 2 GiB.
        """
        with ExitStack() as stack:
            stream = self._opened(stack)
            try:
                return read_elements(stream, self.header)
            except _DAMAGED as error:
                raise unreadable(self.path, self.key, error) from error

    def rows(self, numbers: range) -> Iterator[NDArray[Any]]:
        """The rows along the first dimension with these ascending numbers, one at a time.

        Raises:
            InputFileError: damaged, or a row of more than 2 GiB.
        """
        if self.header.fortran:
            values = self.whole()
            yield from (values[number] for number in numbers)
            return
        row = ArrayHeader(shape=self.shape[1:], dtype=self.dtype, fortran=False)
        with ExitStack() as stack:
            stream = self._opened(stack)
            position = 0
            for number in numbers:
                try:
                    while position < number:
                        read_exactly(stream, row.size)
                        position += 1
                    values = read_elements(stream, row)
                except _DAMAGED as error:
                    raise unreadable(self.path, self.key, error) from error
                position += 1
                yield values

    def _opened(self, stack: ExitStack) -> IO[bytes]:
        """A stream that stands behind the header."""
        try:
            if self.key:
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                stream = stack.enter_context(archive.open(f"{self.key}.npy"))
                available = archive.getinfo(f"{self.key}.npy").file_size
            else:
                stream = stack.enter_context(self.path.open("rb"))
                available = self.path.stat().st_size
            read_header(stream, available)
        except _DAMAGED as error:
            raise unreadable(self.path, self.key, error) from error
        return stream


def members(path: Path) -> tuple[Member, ...]:
    """The arrays of an .npy or .npz file, in the order of their names; reads headers only.

    Raises:
        InputFileError: unreadable, damaged, or holding Python objects.
    """
    require_file(path)
    if not path.is_file():
        raise InputFileError("is not a file", fix="name an .npy or .npz file", where=str(path))
    key = ""
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as stream:
                return (Member(path=path, key=key, header=read_header(stream, path.stat().st_size)),)
        found = []
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            if len(entries) > _MOST_MEMBERS:
                raise ValueError(f"it holds {counted(len(entries), 'array')}; {_MOST_MEMBERS} is the limit")
            for entry in sorted(entries, key=lambda entry: entry.filename):
                key = entry.filename.removesuffix(".npy")
                with archive.open(entry) as stream:
                    found.append(Member(path=path, key=key, header=read_header(stream, entry.file_size)))
    except _DAMAGED as error:
        raise unreadable(path, key, error) from error
    if not found:
        raise InputFileError("holds no arrays", fix="save it with numpy.savez", where=str(path))
    return tuple(found)


def unreadable(path: Path, key: str, error: Exception) -> InputFileError:
    """The error of a file, or of the array `key` in it, that cannot be read."""
    which = f"array {key!r} cannot be read" if key else "cannot be read as a numpy file"
    return InputFileError(
        f"{which}: {error}", fix="write plain numbers with numpy.save or numpy.savez", where=str(path)
    )
