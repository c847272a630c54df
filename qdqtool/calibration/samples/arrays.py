"""Samples in .npy and .npz files: one file of many samples, or a folder of them, read row by row.

Rows are streamed, so that a file of any size needs the memory of one sample. Pickled objects are refused.
"""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from qdqtool.errors import InputFileError

_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One array of a file, not read yet.

    Attributes:
        path: the .npy or .npz file.
        key: the array's name inside an .npz; "" for an .npy.
        shape: its shape.
        dtype: its type.
        fortran: whether the columns lie together instead of the rows.
    """

    path: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    def whole(self) -> NDArray[Any]:
        """All of it."""
        with ExitStack() as stack:
            stream, _ = _opened(stack, self.path, self.key)
            values = np.frombuffer(
                _exactly(stream, self, math.prod(self.shape) * self.dtype.itemsize), self.dtype
            )
        return values.reshape(self.shape, order="F" if self.fortran else "C")

    def rows(self, numbers: range) -> Iterator[NDArray[Any]]:
        """The rows along the first dimension with these ascending numbers, one at a time."""
        if self.fortran:
            values = self.whole()
            yield from (values[number] for number in numbers)
            return
        size = math.prod(self.shape[1:]) * self.dtype.itemsize
        with ExitStack() as stack:
            stream, _ = _opened(stack, self.path, self.key)
            position = 0
            for number in numbers:
                while position < number:
                    _exactly(stream, self, size)
                    position += 1
                position += 1
                yield np.frombuffer(_exactly(stream, self, size), self.dtype).reshape(self.shape[1:])


def members(path: Path) -> tuple[Member, ...]:
    """The arrays of an .npy or .npz file, in the order of their names.

    Raises:
        InputFileError: unreadable, damaged, or holding Python objects.
    """
    if path.suffix.lower() == ".npy":
        return (_member(path, ""),)
    try:
        with zipfile.ZipFile(path) as archive:
            keys = sorted(name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy"))
    except (OSError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error
    if not keys:
        raise InputFileError("holds no arrays", fix="save it with numpy.savez", where=str(path))
    return tuple(_member(path, key) for key in keys)


def _member(path: Path, key: str) -> Member:
    with ExitStack() as stack:
        _, (shape, fortran, dtype) = _opened(stack, path, key)
    return Member(path=path, key=key, shape=shape, dtype=dtype, fortran=fortran)


def _opened(
    stack: ExitStack, path: Path, key: str
) -> tuple[IO[bytes], tuple[tuple[int, ...], bool, np.dtype[Any]]]:
    """A stream that stands behind the header, and what the header says."""
    try:
        if key:
            archive = stack.enter_context(zipfile.ZipFile(path))
            stream = stack.enter_context(archive.open(f"{key}.npy"))
            available = archive.getinfo(f"{key}.npy").file_size
        else:
            stream = stack.enter_context(path.open("rb"))
            available = path.stat().st_size
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise InputFileError(
                f"is .npy version {version}", fix="save it again with numpy.save", where=str(path)
            )
        shape, fortran, dtype = _HEADERS[version](stream)
    except (
        OSError,
        ValueError,
        KeyError,
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        SyntaxError,
        RuntimeError,
    ) as error:
        raise _unreadable(path, error) from error
    if dtype.hasobject:
        raise InputFileError(
            f"array {key!r} holds pickled Python objects, which are never loaded",
            fix="save plain numbers with numpy.savez",
            where=str(path),
        )
    if math.prod(shape) * dtype.itemsize > available:
        raise _ends_early(path, key)
    return stream, (shape, fortran, dtype)


def _exactly(stream: IO[bytes], member: Member, size: int) -> bytes:
    try:
        content = stream.read(size)
    except (OSError, zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise _unreadable(member.path, error) from error
    if len(content) < size:
        raise _ends_early(member.path, member.key)
    return content


def _ends_early(path: Path, key: str) -> InputFileError:
    return InputFileError(f"array {key!r} ends early", fix="copy or write the file again", where=str(path))


def _unreadable(path: Path, error: Exception) -> InputFileError:
    return InputFileError(
        f"cannot be read as a numpy file: {error}",
        fix="write it with numpy.save or numpy.savez",
        where=str(path),
    )
