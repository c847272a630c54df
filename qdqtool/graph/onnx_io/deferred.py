"""Weights in external files: their sizes, the allowed places of files, and reading of values only when needed.

Most steps need only names, types and shapes of a large model. Its heavy weights are references: the position of the
bytes, and the state of the file at the time of reading. `array` and `content` read a single weight on demand. `whole`
puts all weights back, for consumers that accept only complete messages.

A reference is an external tensor with a mark that is drawn at random in every process, so no file can contain a valid
mark. External data that a model itself declares is always checked first.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.walk import is_heavy, tensors
from qdqtool.io.files import VARIABLE, budget, budget_words, held_bytes, is_stated

# --- weight ----------------------------------------------------------------------------------------------------------
# Sizes of tensors, and checks that their bytes fit their shape.


_SIZES = {
    128: "COMPLEX128",
    64: "DOUBLE INT64 UINT64 COMPLEX64",
    32: "FLOAT INT32 UINT32",
    16: "FLOAT16 BFLOAT16 INT16 UINT16",
    8: "INT8 UINT8 BOOL FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0",
    4: "INT4 UINT4 FLOAT4E2M1",
    2: "INT2 UINT2",
}
_BITS = {name: bits for bits, names in _SIZES.items() for name in names.split()}
# Number of elements: more than any memory holds, but the product of dimensions does not overflow yet.
_LARGEST = 1 << 40


def type_name(tensor: onnx.TensorProto) -> str:
    """Return the ONNX name of the element type; "" for an unknown type number."""
    is_defined = tensor.data_type in onnx.TensorProto.DataType.values()
    return onnx.TensorProto.DataType.Name(tensor.data_type) if is_defined else ""


def byte_size(tensor: onnx.TensorProto) -> int | None:
    """Return the number of bytes of a tensor as ONNX packs it; None for strings and for unknown types."""
    bits = _BITS.get(type_name(tensor))
    return None if bits is None else (prod(tensor.dims) * bits + 7) // 8


def flaw(tensor: onnx.TensorProto) -> str | None:
    """Return the contradiction between a tensor's type, shape and stored values; None if they agree.

    External data is not checked.
    """
    name = type_name(tensor)
    if not name or name == "UNDEFINED":
        return f"has element type number {tensor.data_type}, which ONNX does not define"
    if any(dim < 0 for dim in tensor.dims) or prod(tensor.dims) > _LARGEST:
        return f"has the impossible shape {list(tensor.dims)}"
    if tensor.HasField("segment"):
        return "is stored in segments, which no release of onnx reads"
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return "stores strings in an external file, which ONNX forbids" if name == "STRING" else None
    if any(not _is_text(entry) for entry in tensor.string_data):
        return "holds strings that are not UTF-8"
    if tensor.HasField("raw_data"):
        needed, held = byte_size(tensor), len(tensor.raw_data)
    else:
        needed, held = _count_stored(tensor, name)
    return (
        None
        if needed == held
        else f"has shape {list(tensor.dims)} but holds {held} of {needed} values or bytes"
    )


def _is_text(content: bytes) -> bool:
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _count_stored(tensor: onnx.TensorProto, name: str) -> tuple[int, int]:
    """Return how many entries the value field of a tensor should hold, and how many it holds."""
    count = prod(tensor.dims)
    if name == "STRING":
        return count, len(tensor.string_data)
    if name in {"FLOAT", "COMPLEX64"}:
        return count * (1 + (name == "COMPLEX64")), len(tensor.float_data)
    if name in {"DOUBLE", "COMPLEX128"}:
        return count * (1 + (name == "COMPLEX128")), len(tensor.double_data)
    if name == "INT64":
        return count, len(tensor.int64_data)
    if name in {"UINT32", "UINT64"}:
        return count, len(tensor.uint64_data)
    packed = 8 // min(8, _BITS[name])
    return (count + packed - 1) // packed, len(tensor.int32_data)


# --- external --------------------------------------------------------------------------------------------------------
# Loads or references weights in files beside the model. Checks the paths and sizes first.


_UNHELD = 1 << 30
"""Bytes that weights may claim beyond the content of their files; valid models share ranges or omit zeros."""
_LONGEST_NAME = 4096
"""Longest path in bytes; no file system accepts a longer one."""


def attach(proto: onnx.ModelProto, path: Path) -> int:
    """Read or reference all external data of the model at `path`; return their size in bytes.

    Heavy initializers of a very large model become references; all other external data is read. External data
    anywhere in the model (graph, body, function, training information, sparse tensor) is read or rejected. Otherwise
    onnx would later look for the files in the current directory.

    Raises:
        InputFileError: a file is missing, too short, or outside the model's folder; or the weights to read, plus the
            largest that stays in its file, exceed the memory budget.
    """
    weights = proto.graph.initializer
    is_large = sum(byte_size(tensor) or 0 for tensor in weights) >= FROM
    places: list[_Place] = []
    total = kept = 0
    for group, refers in ((weights, is_large), (tensors(proto), False)):
        external = []
        for tensor in group:
            if tensor.data_location == onnx.TensorProto.EXTERNAL and not is_deferred(tensor):
                external.append(_find_place(tensor, path))
                size = external[-1].size
                total += size
                stays = refers and is_worth(tensor)
                kept += 0 if stays else size
                needed = (
                    kept + size if stays else kept
                )  # weights that stay in their file are read one at a time
                if needed > (most := budget()):
                    problem = f"increases the weights to {count_noun(needed, 'byte', grouped=True)}, more than {budget_words(most)}"
                    fix = f"allow more with --max-memory or {VARIABLE}, or use a smaller model"
                    raise _bad(path, tensor, problem, fix)
        places += external
        if total > _UNHELD and external and not is_stated():
            _check_held(places, total, path)
        for place in external:
            _take(place, path, refers and is_worth(place.tensor))
    return total


class _Place(NamedTuple):
    """Position of the bytes of a tensor in an external file."""

    tensor: onnx.TensorProto
    file: Path
    offset: int
    size: int


def _find_place(tensor: onnx.TensorProto, path: Path) -> _Place:
    size = byte_size(tensor)
    if size is None:
        raise _bad(path, tensor, "is external and has a type without a size", "export the model again")
    entries = {entry.key: entry.value for entry in tensor.external_data}
    file = _inside(tensor, entries.get("location", ""), path)
    try:
        offset, length = int(entries.get("offset") or 0), int(entries.get("length") or size)
    except ValueError as error:
        raise _bad(
            path, tensor, f"has a broken offset or length: {error}", "export the model again"
        ) from error
    if length != size or offset < 0:
        problem = f"needs {size} bytes for its shape but declares {length} at offset {offset}"
        raise _bad(path, tensor, problem, "export the model again")
    return _Place(tensor, file, offset, size)


def _check_held(places: list[_Place], total: int, path: Path) -> None:
    """Reject weights that claim far more bytes than their files hold: files with holes, or several tensors with the same bytes."""
    ranges: dict[Path, list[tuple[int, int]]] = {}
    for place in places:
        ranges.setdefault(place.file, []).append((place.offset, place.offset + place.size))
    there = 0
    for file, named in ranges.items():
        with (
            suppress(OSError),
            file.open("rb") as stream,
        ):  # unreadable weights are reported when they are read
            there += held_bytes(stream, named, total - there)
    if total - there > _UNHELD:
        raise InputFileError(
            f"the model claims {count_noun(total, 'byte', grouped=True)} of weights in other files, which hold {there:,} of them: the files are sparse, or tensors overlap",
            fix=f"copy the complete files (`cp --sparse=never`), or allow it with --max-memory or {VARIABLE}",
            where=str(path),
        )


def _take(place: _Place, path: Path, by_reference: bool) -> None:
    """Read the bytes of an external tensor, or turn it into a reference that is read later."""
    tensor, file, offset, size = place
    try:
        with file.open("rb") as stream:
            if file.stat().st_size - offset < size:
                problem = f"needs {size} bytes at offset {offset} of {file.name!r}, which is too short"
                raise _bad(path, tensor, problem, f"copy {file.name!r} again: it is truncated")
            if by_reference:
                refer(tensor, file, stream, offset, size)
                return
            stream.seek(offset)
            content = stream.read(size)
    except OSError as error:
        problem = f"needs external data in {file.name!r}, which cannot be read: {error.strerror}"
        raise _bad(path, tensor, problem, f"put {file.name!r} next to the model") from error
    if len(content) != size:
        raise _bad(
            path,
            tensor,
            f"needs {file.name!r}, which became shorter while it was read",
            "run the command again",
        )
    tensor.raw_data = content
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def _inside(tensor: onnx.TensorProto, location: str, path: Path) -> Path:
    """Return the external file at `location`, if it is a regular file in or below the model's folder.

    In a cache of Hugging Face, the file may be a link into the blobs of its own repository.
    """
    folder = path.parent.resolve()
    fix = "copy the data file into the model's folder and store a plain file name as its location"
    if not location or "\0" in location:
        raise _bad(path, tensor, "is external but names no file", "export the model again")
    if len(location.encode("utf-8", "replace")) > _LONGEST_NAME:
        problem = (
            f"is external with a location of {count_noun(len(location), 'character')}: {location[:60]!r}..."
        )
        raise _bad(path, tensor, problem, "export the model again")
    file = folder / location
    target = _resolve_path(file)
    is_inside = target.is_relative_to(folder) or (".." not in file.parts and _is_blob(target, folder))
    if Path(location).is_absolute() or not is_inside:
        raise _bad(path, tensor, f"points outside the model's folder: {location!r}", fix)
    if not is_file(file):
        problem = f"needs external data in {location!r}, which is missing"
        raise _bad(path, tensor, problem, f"put {location!r} next to the model")
    return file


def _is_blob(target: Path, folder: Path) -> bool:
    """Return True for models--OWNER--NAME/blobs/HASH if `folder` is in models--OWNER--NAME/snapshots/REVISION."""
    return any(
        target.parent == parent.with_name("blobs") and parent.parent.name.startswith("models--")
        for parent in folder.parents
        if parent.name == "snapshots"
    )


def _resolve_path(file: Path) -> Path:
    """Return the target of a path; for a loop of links the root, which is outside every model folder."""
    try:
        return file.resolve()
    except (OSError, RuntimeError):  # older Python releases raise RuntimeError for loops
        return Path(file.anchor)


def is_file(file: Path) -> bool:
    """Return True if a path is a regular file; False if a part of it is too long for the file system."""
    try:
        return file.is_file()
    except OSError:
        return False


def _bad(path: Path, tensor: onnx.TensorProto, problem: str, fix: str) -> InputFileError:
    return InputFileError(f"tensor {tensor.name!r} {problem}", fix=fix, where=str(path))


# --- sixteen bits ----------------------------------------------------------------------------------------------------
# Converts FP32 values to the bits of FP16 or BF16 in sections, so that a large weight needs no copy.


_SECTION: Final = 1 << 20
"""Number of elements converted at a time, which takes about 32 MiB."""


class Reach(NamedTuple):
    """Largest finite and smallest positive number of a float type."""

    largest: float
    smallest: float


REACH: Final = {
    int(onnx.TensorProto.FLOAT16): Reach(65504.0, 2.0**-24),
    int(onnx.TensorProto.BFLOAT16): Reach((2.0 - 2.0**-7) * 2.0**127, 2.0**-133),
}
"""Reach by ONNX's number of the type."""


def sections(value: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Yield the values of an array in sections; an empty array has one empty section."""
    flat = value.reshape(-1)
    yield from (flat[begin : begin + _SECTION] for begin in range(0, max(flat.size, 1), _SECTION))


def bits(value: NDArray[Any], element: int) -> NDArray[np.uint16]:
    """Return the values of an array in the 16-bit type `element`, little-endian, each rounded to nearest even.

    Values that are too large become the largest number. Values that would become zero become the smallest number, so
    that an epsilon still protects its division. Infinities and NaN stay.
    """
    rounded = np.empty(value.size, "<u2")
    begin = 0
    for section in sections(value):
        rounded[begin : begin + section.size] = _round_to_narrow(section.astype(np.float32), element)
        begin += section.size
    return rounded.reshape(value.shape)


def _round_to_narrow(wide: NDArray[np.float32], element: int) -> NDArray[np.uint16]:
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

Weights in memory exist in addition to the copies in every session.
"""

_MARK: Final = "qdqtool.mark"
_NARROW: Final = "qdqtool.narrow"
"""Key that marks a reference to values that are stored in the file in another type."""
# A secret, so that no foreign file can claim to be a weight of this process.
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


def spill_tensor(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Write the values of a tensor to a file that lasts as long as this process; return a reference to the file."""
    content_ = content(tensor)
    file = Path(_spill().name) / f"{next(_numbers)}"
    file.write_bytes(content_)
    reference = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    with file.open("rb") as stream:
        refer(reference, file, stream, 0, len(content_))
    return reference


@lru_cache(maxsize=1)
def _spill() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="qdqtool-weights-", ignore_cleanup_errors=True)


_numbers: Final = count()


def is_worth(tensor: onnx.TensorProto) -> bool:
    """Return True if a weight is large enough to stay in its file, and no onnx pass needs its values."""
    return is_heavy(tensor) and (byte_size(tensor) or 0) >= HEAVY


def is_deferred(tensor: onnx.TensorProto) -> bool:
    """Return True if a weight was left in its file, to be read later."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL and any(
        entry.key == _MARK and entry.value.startswith(_TOKEN) for entry in tensor.external_data
    )


def is_whole(tensor: onnx.TensorProto) -> bool:
    """Return True if the values of a weight are still in a file, as FP32."""
    return tensor.data_type == onnx.TensorProto.FLOAT and _lies(tensor)


def narrow_tensor(tensor: onnx.TensorProto, name: str, element: int) -> onnx.TensorProto:
    """Return a reference to an FP32 weight in a file, which is converted to a 16-bit type at each read."""
    reference = onnx.TensorProto()
    reference.CopyFrom(tensor)
    reference.name, reference.data_type = name, element
    reference.external_data.add(key=_NARROW, value=str(element))
    return reference


def _lies(tensor: onnx.TensorProto) -> bool:
    """Return True if the file of a weight has its bytes exactly as ONNX stores them."""
    return is_deferred(tensor) and _NARROW not in _entries(tensor)


def content(tensor: onnx.TensorProto) -> bytes:
    """Return the values of a tensor as ONNX stores them in external files: packed, little-endian.

    Raises:
        InputFileError: their file no longer exists or has changed.
    """
    if is_deferred(tensor):
        return _read(tensor)
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    return bytes(numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data)


def array(tensor: onnx.TensorProto) -> NDArray[Any]:
    """Return the values of a tensor as an array; read-only if they come from packed bytes.

    Raises:
        InputFileError: their file no longer exists or has changed.
    """
    if not is_deferred(tensor):
        return numpy_helper.to_array(tensor)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    size = byte_size(tensor)
    if size == dtype.itemsize * int(np.prod(tensor.dims, dtype=np.int64)):
        return np.frombuffer(_read(tensor), dtype.newbyteorder("<")).reshape(tuple(tensor.dims))
    return numpy_helper.to_array(with_values(tensor))  # several values in a byte


def with_values(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a tensor with its values in memory; the tensor itself if they are there already."""
    if not is_deferred(tensor):
        return tensor
    return onnx.TensorProto(
        name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=_read(tensor)
    )


def whole(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with all weights in memory; the model itself if none is in a file."""
    if not any(map(is_deferred, proto.graph.initializer)):
        return proto
    full = onnx.ModelProto()
    full.CopyFrom(proto)  # references take little memory
    for tensor in full.graph.initializer:
        if is_deferred(tensor):
            tensor.raw_data = _read(tensor)
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
    return full


def home_of(tensors: Iterable[onnx.TensorProto]) -> Path | None:
    """Return the folder of the files that hold these weights unconverted; None if there is not exactly one.

    Raises:
        InputFileError: a file no longer exists or has changed.
    """
    files = {_entries(tensor)["location"]: tensor for tensor in tensors if _lies(tensor)}
    for tensor in files.values():
        with _open_values(tensor):
            pass
    folders = {Path(file).parent for file in files}
    return folders.pop() if len(folders) == 1 else None


def from_home(tensor: onnx.TensorProto) -> onnx.TensorProto:
    """Return a weight in a file as an ONNX external tensor. Its reader must look in the folder of the file."""
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
    """Return how many bytes a weight takes in memory; 0 if it stays in a file."""
    return 0 if _lies(tensor) else byte_size(tensor) or 0


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


@contextmanager
def _open_values(tensor: onnx.TensorProto) -> Iterator[BinaryIO]:
    """Open the file of a weight, and check that it has not changed since the model was read."""
    entries = _entries(tensor)
    file = Path(entries["location"])
    try:
        with file.open("rb") as stream:
            if _stamp(stream) != entries[_MARK].partition(":")[2]:
                raise InputFileError(
                    "the file changed while the command was running", fix=_AGAIN, where=str(file)
                )
            yield stream
    except OSError as error:
        problem = f"the file holds tensor {tensor.name!r} and can no longer be read: {error.strerror}"
        raise InputFileError(problem, fix=_AGAIN, where=str(file)) from error


def _read(tensor: onnx.TensorProto) -> bytes:
    entries = _entries(tensor)
    size = int(entries["length"])
    with _open_values(tensor) as stream:
        stream.seek(int(entries["offset"]))
        content = stream.read(size)
    if len(content) != size:
        raise InputFileError(
            "the file became shorter while it was read", fix=_AGAIN, where=entries["location"]
        )
    element = entries.get(_NARROW)
    return content if element is None else bits(np.frombuffer(content, "<f4"), int(element)).tobytes()


def _stamp(stream: BinaryIO) -> str:
    """Return the length and modification time of an open file, to detect changes."""
    status = os.fstat(stream.fileno())
    return f"{status.st_size}.{status.st_mtime_ns}"
