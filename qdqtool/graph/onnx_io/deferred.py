"""Weights that stay in their file until their values are needed.

Of a large model most steps need names, types and shapes only. Its heavy weights are held as references: where their
bytes lie, and what the file looked like when it was read. `array` and `content` read one when it is wanted, `whole` puts
all of them back for a reader that takes messages only.

A reference is an external tensor with a mark that is drawn again in every process, so that no file can hold one: what a
stranger's model says of external data goes through `external` and nowhere else.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.skeleton import is_heavy
from qdqtool.graph.onnx_io.weight import byte_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


# --- sixteen bits ----------------------------------------------------------------------------------------------------
# Converts FP32 values to the bits of FP16 or BF16 in sections, so that a large weight needs no copy.


_SECTION: Final = 1 << 20
"""Number of elements converted at a time, which takes about 32 MiB."""


class Reach(NamedTuple):
    """Largest finite and smallest positive number of a type."""

    largest: float
    smallest: float


REACH: Final = {
    int(onnx.TensorProto.FLOAT16): Reach(65504.0, 2.0**-24),
    int(onnx.TensorProto.BFLOAT16): Reach((2.0 - 2.0**-7) * 2.0**127, 2.0**-133),
}
"""Reach by ONNX's number of the type."""


def sections(value: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the values in order, in sections; an empty array has one empty section."""
    flat = value.reshape(-1)
    yield from (flat[begin : begin + _SECTION] for begin in range(0, max(flat.size, 1), _SECTION))


def bits(value: NDArray[Any], element: int) -> NDArray[np.uint16]:
    """Return the values as little-endian bits of the type `element`, each rounded to nearest even.

    What is too large becomes the largest number, what would become zero the smallest, so that an epsilon still
    protects its division; infinities and NaN stay.
    """
    found = np.empty(value.size, "<u2")
    begin = 0
    for section in sections(value):
        found[begin : begin + section.size] = _rounded(section.astype(np.float32), element)
        begin += section.size
    return found.reshape(value.shape)


def _rounded(wide: NDArray[np.float32], element: int) -> NDArray[np.uint16]:
    reach = REACH[element]
    bounded = np.where(np.isfinite(wide), np.clip(wide, -reach.largest, reach.largest), wide)
    lost = (bounded != 0) & (np.abs(bounded) < reach.smallest)
    value = np.where(lost, np.copysign(reach.smallest, bounded), bounded).astype(np.float32)
    if element == onnx.TensorProto.FLOAT16:
        return value.astype(np.float16).view(np.uint16)
    whole = value.view(np.uint32)
    rounded = (whole + np.uint32(0x7FFF) + ((whole >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), np.uint32(0x7FC0), rounded).astype(np.uint16)


# --- deferred --------------------------------------------------------------------------------------------------------


HEAVY: Final = 1 << 16
"""Smallest size in bytes of a tensor that becomes a reference."""
FROM: Final = 4 << 20
"""Bytes of weights from which on a model's heavy weights stay in their files; every edit of a model copies weights in memory.

Weights in memory lie there beside those of every session, too.
"""

_MARK: Final = "qdqtool.mark"
_NARROW: Final = "qdqtool.narrow"
"""Key that marks a reference to values that are stored in the file in another type."""
# Not to be guessed: no file from outside can claim to be a weight of this process.
_TOKEN: Final = secrets.token_hex(16)
_AGAIN: Final = "do not change the file while the command runs; run the command again"


def refer(tensor: onnx.TensorProto, file: Path, stream: BinaryIO, offset: int, size: int) -> None:
    """Turn `tensor` into a reference to `size` bytes at `offset` of the open `file`."""
    del tensor.external_data[:]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    places = {
        "location": file.resolve(),
        "offset": offset,
        "length": size,
        _MARK: f"{_TOKEN}:{_stamp(stream)}",
    }
    for key, value in places.items():
        tensor.external_data.add(key=key, value=str(value))


def spilled(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a reference to the values of a tensor, which go to a file that lasts as long as this process."""
    content_ = content(tensor)
    file = Path(_spill().name) / f"{next(_numbers)}"
    file.write_bytes(content_)
    found = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    with file.open("rb") as stream:
        refer(found, file, stream, 0, len(content_))
    return found


@lru_cache(maxsize=1)
def _spill() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="qdqtool-weights-", ignore_cleanup_errors=True)


_numbers: Final = count()


def is_worth(tensor: onnx.TensorProto) -> bool:
    """Return True if a tensor is large enough for a reference; tensors that onnx's own passes read never are."""
    return is_heavy(tensor) and (byte_size(tensor) or 0) >= HEAVY


def is_deferred(tensor: onnx.TensorProto) -> bool:
    """Return True if the values are still in a file, deferred by this process."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL and any(
        entry.key == _MARK and entry.value.startswith(_TOKEN) for entry in tensor.external_data
    )


def is_whole(tensor: onnx.TensorProto) -> bool:
    """Return True if the values are still in a file, as FP32."""
    return tensor.data_type == onnx.TensorProto.FLOAT and _lies(tensor)


def narrowed(tensor: onnx.TensorProto, name: str, element: int) -> onnx.TensorProto:
    """Return a reference to FP32 values in a file that represents them in a 16-bit type; each read converts them."""
    found = onnx.TensorProto()
    found.CopyFrom(tensor)
    found.name, found.data_type = name, element
    found.external_data.add(key=_NARROW, value=str(element))
    return found


def _lies(tensor: onnx.TensorProto) -> bool:
    """Return True if the file holds the bytes of the values unchanged."""
    return is_deferred(tensor) and _NARROW not in _entries(tensor)


def content(tensor: onnx.TensorProto) -> bytes:
    """Return the values as ONNX stores them in external files: packed, little-endian.

    Raises:
        InputFileError: the file that holds them is gone or not what it was.
    """
    if is_deferred(tensor):
        return _read(tensor)
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    return bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)


def array(tensor: onnx.TensorProto) -> NDArray[Any]:
    """Return the values as an array; read-only if they come from packed bytes.

    Raises:
        InputFileError: the file that holds them is gone or not what it was.
    """
    if not is_deferred(tensor):
        return numpy_helper.to_array(tensor)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    size = byte_size(tensor)
    if size == dtype.itemsize * int(np.prod(tensor.dims, dtype=np.int64)):
        return np.frombuffer(_read(tensor), dtype.newbyteorder("<")).reshape(tuple(tensor.dims))
    return numpy_helper.to_array(with_values(tensor))  # several values in a byte


def with_values(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return the tensor with its values inside; the tensor itself if they are there already."""
    if not is_deferred(tensor):
        return tensor
    return onnx.TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=_read(tensor)
    )


def whole(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with all weights inside; the model itself if none stayed in a file."""
    if not any(map(is_deferred, proto.graph.initializer)):
        return proto
    full = onnx.ModelProto()
    full.CopyFrom(proto)  # references are small
    for tensor in full.graph.initializer:
        if is_deferred(tensor):
            tensor.raw_data = _read(tensor)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return full


def home_of(tensors: Iterable[onnx.TensorProto]) -> Path | None:
    """Return the folder of the files that hold tensors unchanged; None if there is not exactly one such folder.

    Raises:
        InputFileError: a file is gone or not what it was.
    """
    files = {_entries(tensor)["location"]: tensor for tensor in tensors if _lies(tensor)}
    for tensor in files.values():
        with _opened(tensor):
            pass
    folders = {Path(file).parent for file in files}
    return folders.pop() if len(folders) == 1 else None


def from_home(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return the tensor as an ONNX external tensor, for a reader that looks for files in the folder of these files."""
    if not _lies(tensor):
        return with_values(tensor)
    entries = _entries(tensor)
    stub = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    stub.data_location = onnx.TensorProto.EXTERNAL
    stub.external_data.add(key="location", value=Path(entries["location"]).name)
    for key in ("offset", "length"):
        stub.external_data.add(key=key, value=entries[key])
    return stub


def in_memory(tensor: onnx.TensorProto) -> int:
    """Return the bytes of the values; 0 if a file holds them unchanged."""
    return 0 if _lies(tensor) else byte_size(tensor) or 0


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


@contextmanager
def _opened(tensor: onnx.TensorProto) -> Iterator[BinaryIO]:
    """Open the file that holds the values; checks that it has not changed since the tensor was deferred."""
    entries = _entries(tensor)
    file = Path(entries["location"])
    try:
        with file.open("rb") as stream:
            if _stamp(stream) != entries[_MARK].partition(":")[2]:
                raise InputFileError("changed while the command was running", fix=_AGAIN, where=str(file))
            yield stream
    except OSError as error:
        what = f"holds tensor {tensor.name!r} and can no longer be read: {error.strerror}"
        raise InputFileError(what, fix=_AGAIN, where=str(file)) from error


def _read(tensor: onnx.TensorProto) -> bytes:
    entries = _entries(tensor)
    size = int(entries["length"])
    with _opened(tensor) as stream:
        stream.seek(int(entries["offset"]))
        found = stream.read(size)
    if len(found) != size:
        raise InputFileError("became shorter while it was read", fix=_AGAIN, where=entries["location"])
    element = entries.get(_NARROW)
    return found if element is None else bits(np.frombuffer(found, "<f4"), int(element)).tobytes()


def _stamp(stream: BinaryIO) -> str:
    """Return the length and modification time of a file, to detect changes."""
    known = os.fstat(stream.fileno())
    return f"{known.st_size}.{known.st_mtime_ns}"
