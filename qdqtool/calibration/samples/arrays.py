"""Samples in .npy and .npz files: one file with many samples, or a folder of files, read row by row.

Rows are streamed, so that a file of any size needs the memory of one sample. Pickled objects are refused.
"""

from __future__ import annotations

import base64
import math
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.calibration.samples.conform import RawSample, fits, fitted_shape, single, without_batch
from qdqtool.core.recipe import Preprocess
from qdqtool.core.tensors import TensorInfo
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError
from qdqtool.io.files import digest_file, digest_files, require_file
from qdqtool.io.json_files import read_json
from qdqtool.io.npy import ArrayHeader, decode_array, read_elements, read_exactly, read_header

# --- polygraphy files ------------------------------------------------------------------------------------------------
# Samples in the JSON files that Polygraphy writes with `--save-inputs`.
#
# A file is a list of feeds; each maps input names to {"array": base64 of an .npy file, "polygraphy_class": "ndarray"}.


class PolygraphyInputs:
    """Source of the feeds in one file. The JSON text stays in memory; arrays are decoded one feed at a time."""

    meaningful = True

    def __init__(self, path: Path) -> None:
        self.description = f"Polygraphy inputs {path.name}"
        self._path = path
        content = read_json(path)
        if not isinstance(content, list) or not all(isinstance(feed, dict) for feed in content):
            raise InputFileError(
                "the file is not a JSON list of dicts from input names to arrays",
                fix="write the file with `polygraphy run --save-inputs`",
                where=str(path),
            )
        self._feeds: list[Mapping[str, Any]] = content

    def digest(self) -> str:
        return digest_file(self._path)

    def __len__(self) -> int:
        return len(self._feeds)

    def read(self, numbers: Sequence[int]) -> Iterator[RawSample]:
        for number in numbers:
            where = f"{self._path}[{number}]"
            arrays = {
                name: _array(value, f"{where}, input {name!r}") for name, value in self._feeds[number].items()
            }
            yield RawSample(name=where, arrays=arrays)


def _array(value: object, where: str) -> NDArray[Any]:
    text = value.get("array") if isinstance(value, dict) else None
    if not isinstance(text, str):
        raise _not_an_array("no base64 text under 'array'", where)
    try:
        return decode_array(base64.b64decode(text, validate=True))
    except ValueError as error:
        raise _not_an_array(str(error), where) from error


def _not_an_array(problem: str, where: str) -> InputFileError:
    return InputFileError(
        f"an array in the file cannot be decoded: {problem}",
        fix="write the file with `polygraphy run --save-inputs`",
        where=where,
    )


# --- arrays in files -------------------------------------------------------------------------------------------------

_MOST_MEMBERS: Final = 1 << 14
"""Largest number of arrays in one file; a model has only a few inputs."""
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
"""Exceptions from reading damaged, encrypted or unusually compressed archives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One array in a file; its values are not read yet.

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
        """Type of the elements."""
        return self.header.dtype

    def whole(self) -> NDArray[Any]:
        """Read the whole array.

        Raises:
            InputFileError: damaged, or more than 2 GiB.
        """
        with ExitStack() as stack:
            stream = self._open_stream(stack)
            try:
                return read_elements(stream, self.header)
            except _DAMAGED as error:
                raise unreadable(self.path, self.key, error) from error

    def rows(self, numbers: Sequence[int]) -> Iterator[NDArray[Any]]:
        """Yield the rows with these ascending numbers along the first dimension, one at a time.

        Raises:
            InputFileError: damaged, or a row of more than 2 GiB.
        """
        if self.header.fortran:
            values = self.whole()
            yield from (values[number] for number in numbers)
            return
        row = ArrayHeader(shape=self.shape[1:], dtype=self.dtype, fortran=False)
        with ExitStack() as stack:
            stream = self._open_stream(stack)
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

    def _open_stream(self, stack: ExitStack) -> IO[bytes]:
        """Open a stream positioned after the header."""
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
    """List the arrays of an .npy or .npz file, in the order of their names. Only the headers are read.

    Raises:
        InputFileError: unreadable, damaged, or holding Python objects.
    """
    require_file(path)
    if not path.is_file():
        raise InputFileError("the path is not a file", fix="name an .npy or .npz file", where=str(path))
    key = ""
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as stream:
                return (Member(path=path, key=key, header=read_header(stream, path.stat().st_size)),)
        arrays = []
        with zipfile.ZipFile(path) as archive:
            entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
            if len(entries) > _MOST_MEMBERS:
                raise ValueError(
                    f"it holds {count_noun(len(entries), 'array')}; {_MOST_MEMBERS} is the limit"
                )
            for entry in sorted(entries, key=lambda entry: entry.filename):
                key = entry.filename.removesuffix(".npy")
                with archive.open(entry) as stream:
                    arrays.append(Member(path=path, key=key, header=read_header(stream, entry.file_size)))
    except _DAMAGED as error:
        raise unreadable(path, key, error) from error
    if not arrays:
        raise InputFileError("the file holds no arrays", fix="save it with numpy.savez", where=str(path))
    return tuple(arrays)


def unreadable(path: Path, key: str, error: Exception) -> InputFileError:
    """Return the error for a file that cannot be read, or for the array `key` in it."""
    problem = f"array {key!r} cannot be read" if key else "the file cannot be read as a numpy file"
    return InputFileError(
        f"{problem}: {error}", fix="write plain numbers with numpy.save or numpy.savez", where=str(path)
    )


# --- source ----------------------------------------------------------------------------------------------------------
# A source of samples in one or many .npy and .npz files.
#
# In a single file, samples are along the first dimension of every array. In a folder, each file is one sample or
# several.

LABEL_KEYS = ("y", "label", "labels")
_DATA_KEYS = ("x", "data", "images", "image", "input", "inputs")
_NOT_A_BATCH = ("seq", "len", "time", "token")


@dataclass(frozen=True, kw_only=True, slots=True)
class ArrayFile:
    """A file with one or several samples.

    Attributes:
        path: the file.
        arrays: its arrays by model input.
        labels: the array of class indices, if there is one.
        rows: number of samples along the first dimension; None when the file is a single sample.
    """

    path: Path
    arrays: Mapping[str, Member]
    labels: Member | None
    rows: int | None

    def read(self, numbers: Sequence[int]) -> Iterator[RawSample]:
        """Yield the samples with these ascending numbers."""
        if not numbers:
            return
        if self.rows is None:
            whole = {name: member.whole() for name, member in self.arrays.items()}
            yield RawSample(
                name=str(self.path),
                arrays=whole,
                label=None if self.labels is None else int(self.labels.whole().item()),
            )
            return
        names = [name for name, member in self.arrays.items() if member.shape]
        scalars = {name: member.whole() for name, member in self.arrays.items() if not member.shape}
        streams = [self.arrays[name].rows(numbers) for name in names]
        labels = iter(()) if self.labels is None else self.labels.rows(numbers)
        for number, *rows in zip(numbers, *streams, strict=True):
            label = next(labels, None)
            arrays = {name: row[np.newaxis] for name, row in zip(names, rows, strict=True)}
            yield RawSample(
                name=f"{self.path}[{number}]",
                arrays=arrays | scalars,
                label=None if label is None else int(label),
            )


class ArrayFiles:
    """Samples from several files in order."""

    meaningful = True

    def __init__(self, description: str, files: tuple[ArrayFile, ...]) -> None:
        self.description = description
        self._files = files

    def digest(self) -> str:
        return digest_files(file.path for file in self._files)

    def __len__(self) -> int:
        return sum(_count(file) for file in self._files)

    def read(self, numbers: Sequence[int]) -> Iterator[RawSample]:
        first = 0
        for file in self._files:
            count = _count(file)
            yield from file.read(_within(numbers, first, count))
            first += count


def open_file(path: Path, inputs: tuple[TensorInfo, ...], preprocess: Preprocess) -> ArrayFile:
    """Find the array for each input and count the samples. Only the headers are read.

    Raises:
        InputFileError: no array for an input, or arrays of different numbers of samples.
    """
    by_key = {member.key: member for member in members(path)}
    keys = [key for key in LABEL_KEYS if key in by_key and all(key != info.name for info in inputs)]
    labels = next((by_key[key] for key in keys if _is_labels(by_key[key])), None)
    arrays = _assign_arrays(path, by_key, labels, inputs)
    is_whole = bool(without_batch(inputs)) and _all_whole(arrays, inputs)
    counts = {
        name: None if is_whole else _rows(arrays[name], info, preprocess)
        for name, info in {info.name: info for info in inputs}.items()
    }
    numbers = {count for name, count in counts.items() if arrays[name].shape}
    if len(numbers) != 1:
        if None in numbers or not _all_whole(arrays, inputs):
            raise InputFileError(
                f"the arrays of the file hold different numbers of samples: {counts}",
                fix="save the same number of rows for every input",
                where=str(path),
            )
        numbers = {None}
    rows = numbers.pop()
    if rows and all(math.prod(member.shape) == 0 for member in arrays.values()):
        raise InputFileError(
            "the arrays of the file hold no values", fix="save samples with values", where=str(path)
        )
    _check_shapes(path, arrays, inputs, preprocess, rows)
    if labels is not None and math.prod(labels.shape) != (1 if rows is None else rows):
        labels = None
    return ArrayFile(path=path, arrays=arrays, labels=labels, rows=rows)


def _check_shapes(
    path: Path,
    arrays: Mapping[str, Member],
    inputs: tuple[TensorInfo, ...],
    preprocess: Preprocess,
    rows: int | None,
) -> None:
    """Refuse samples of a wrong shape from the header alone, because a small file can unpack to any size."""
    if preprocess.arrays:
        return
    for info in single(inputs):
        shape = arrays[info.name].shape
        if shape:
            row = shape if rows is None else (1, *shape[1:])
            fitted_shape(row, info.shape, f"{path}{'' if rows is None else '[0]'}, input {info.name!r}")


def _assign_arrays(
    path: Path, by_key: Mapping[str, Member], labels: Member | None, inputs: tuple[TensorInfo, ...]
) -> dict[str, Member]:
    """Return the array of each input, by name. A single input may use the only numeric array of any name."""
    arrays = {}
    for info in inputs:
        member = by_key.get(info.name) or by_key.get(f"in:{info.name}")
        if member is None and len(inputs) == 1:
            member = _only_candidate(by_key, labels)
        if member is None:
            raise InputFileError(
                f"the file has no array for input {info.name!r}; it has {', '.join(map(repr, by_key))}",
                fix=f"name the arrays like the model's inputs: {', '.join(entry.name for entry in inputs)}",
                where=str(path),
            )
        arrays[info.name] = member
    return arrays


def _only_candidate(by_key: Mapping[str, Member], labels: Member | None) -> Member | None:
    numeric = [
        member
        for member in by_key.values()
        if member is not labels and member.shape and member.dtype.kind in "fiub"
    ]
    if len(numeric) == 1:
        return numeric[0]
    return next((by_key[key] for key in _DATA_KEYS if key in by_key), None)


def _rows(member: Member, info: TensorInfo, preprocess: Preprocess) -> int | None:
    """Return the number of samples along the first dimension; None if the array is one sample."""
    shape, declared = member.shape, info.shape
    if not shape or declared is None:
        return None
    if not declared:
        return shape[0] if len(shape) == 1 else None
    dims = [dim for dim in declared[1:] if isinstance(dim, int)]
    if len(dims) == len(declared) - 1 and (elements := math.prod(dims)):
        if shape[0] * elements == math.prod(shape):
            return shape[0]
        if math.prod(shape) == elements:
            return None
    rank = len(declared) if preprocess.reshape is None else len(preprocess.reshape) + 1
    if preprocess.arrays and preprocess.layout != "as-is" and len(shape) == 3 and shape[-1] in {1, 3}:
        return None
    names_sequence = isinstance(declared[0], str) and any(
        word in declared[0].lower() for word in _NOT_A_BATCH
    )
    return shape[0] if len(shape) >= rank and not names_sequence else None


def _all_whole(arrays: Mapping[str, Member], inputs: tuple[TensorInfo, ...]) -> bool:
    return all(info.shape is None or fits(arrays[info.name].shape, info.shape) for info in inputs)


def _is_labels(member: Member) -> bool:
    return len(member.shape) <= 1 and member.dtype.kind in "iu"


def _count(file: ArrayFile) -> int:
    return 1 if file.rows is None else file.rows


def _within(numbers: Sequence[int], first: int, count: int) -> list[int]:
    """Return the part of the ascending `numbers` in [first, first + count), counted from `first`."""
    part = numbers[bisect_left(numbers, first) : bisect_left(numbers, first + count)]
    return [number - first for number in part]
