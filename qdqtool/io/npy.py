"""Reader for NumPy's .npy format. It does not trust the header.

A header is text in a file from anywhere: it can claim any shape. NumPy allocates the claimed size before it reads a
byte, so a file of 128 bytes can take 256 TiB. For negative dimensions it raises unclear errors. Here a header must
agree with the number of bytes that are there, which is known without reading them.

Source of the format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from tokenize import TokenError
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

LARGEST: Final = 2 << 30
"""Largest array or row in bytes that is read at once. Compressed, this can be 2 MB, so the size of a file is no measure."""
_DAMAGED: Final = (SyntaxError, TypeError, OverflowError, RecursionError, MemoryError, TokenError)
# NumPy's own readers of a header's two forms; they read no array.
_HEADERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayHeader:
    """The header of a .npy array, already compared with the number of bytes after it.

    Attributes:
        shape: dimensions, none negative.
        dtype: plain numbers, booleans, text or raw bytes; never Python objects.
        fortran: whether the values are stored column by column.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def size(self) -> int:
        """Size of all array elements in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(stream: IO[bytes], available: int) -> ArrayHeader:
    """Read the header of the array at the stream's position. The stream is then at the first byte after the header.

    Args:
        stream: at the beginning of the .npy content.
        available: how many bytes that content has, unpacked.

    Raises:
        ValueError: no header, a version or type that is not read, or more data claimed than there is.
    """
    version = npy.read_magic(stream)
    if version not in _HEADERS:
        raise ValueError(f"the array has .npy version {version[0]}.{version[1]}")
    try:
        shape, fortran, dtype = _HEADERS[version](stream)
    except _DAMAGED as error:
        # The header is a Python literal; a damaged header makes the parser raise any of these.
        raise ValueError(f"the header of the array is damaged: {error}") from error
    if dtype.hasobject:
        raise ValueError("the array holds pickled Python objects, which qdqtool never loads")
    if dtype.itemsize == 0 or any(not 0 <= dim < 1 << 60 for dim in shape):
        raise ValueError(f"the header of the array is damaged: shape {shape} of {dtype.str}")
    header = ArrayHeader(shape=shape, dtype=dtype, fortran=fortran)
    if header.size > available:
        raise ValueError(f"it ends early: shape {shape} of {dtype.str} takes {header.size} bytes")
    return header


def read_elements(stream: IO[bytes], header: ArrayHeader) -> NDArray[Any]:
    """Read the elements that follow a header.

    Raises:
        ValueError: the content ends before the last element, or takes more than 2 GiB.
    """
    content = read_exactly(stream, header.size)
    return np.frombuffer(content, header.dtype).reshape(header.shape, order="F" if header.fortran else "C")


def read_exactly(stream: IO[bytes], size: int) -> bytes:
    """Read exactly `size` bytes from a stream.

    Raises:
        ValueError: there are fewer, or they take more than 2 GiB.
    """
    if size > LARGEST:
        raise ValueError(f"it takes {size >> 20} MiB at once; {LARGEST >> 20} is the limit")
    content = stream.read(size)
    if len(content) < size:
        raise ValueError("the array data end early")
    return content


def decode_array(content: bytes) -> NDArray[Any]:
    """Return the array in the content of an .npy file.

    Raises:
        ValueError: as `read_header` and `read_elements`.
    """
    stream = io.BytesIO(content)
    return read_elements(stream, read_header(stream, len(content)))
