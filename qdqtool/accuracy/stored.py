"""Replays outputs that were computed elsewhere, in the order of the samples, like a model that runs."""

from __future__ import annotations

import base64
import binascii
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.protocols import Feeds, Sample
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.core.wording import count_noun
from qdqtool.errors import InputFileError
from qdqtool.io.json_files import read_json
from qdqtool.io.npy import decode_array, read_elements, read_header

# --- .npz ------------------------------------------------------------------------------------------------------------
# Stored outputs in .npz files.

_LARGEST = 2 << 30
"""Most bytes of all arrays together."""


def from_npz(path: Path) -> list[dict[str, NDArray[Any]]]:
    """Return the stored outputs in a .npz file: one entry per row if all arrays have equally many rows, else one entry.

    Raises:
        InputFileError: unreadable, or holds objects that only running code could restore.
    """
    try:
        with path.open("rb") as stream:
            arrays = _arrays(stream)
    except (OSError, ValueError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise InputFileError(
            f"the file is not an .npz file: {error}", fix="write it with numpy.savez", where=str(path)
        ) from error
    rows = {array.shape[0] if array.ndim else None for array in arrays.values()}
    count = next(iter(rows)) if len(rows) == 1 else None
    if count is None:
        return [arrays] if arrays else []
    return [{name: array[row : row + 1] for name, array in arrays.items()} for row in range(count)]


def _arrays(stream: IO[bytes]) -> dict[str, NDArray[Any]]:
    """Return the arrays in a .npz file by name. Reject an array that states more bytes than the file has."""
    arrays = {}
    with zipfile.ZipFile(stream) as archive:
        entries = [entry for entry in archive.infolist() if entry.filename.endswith(".npy")]
        if (unpacked := sum(entry.file_size for entry in entries)) > _LARGEST:
            raise ValueError(f"it unpacks to {unpacked / 2**30:.0f} GiB")
        for entry in entries:
            with archive.open(entry) as member:
                header = read_header(member, entry.file_size)
                arrays[entry.filename.removesuffix(".npy")] = read_elements(member, header)
    return arrays


# --- JSON ------------------------------------------------------------------------------------------------------------
# Stored outputs in JSON: Polygraphy's run results and trtexec's exported outputs.
#
# Polygraphy writes {"lst": [[runner, [{"outputs": {name: {"values": {"array": base64 of .npy}}}}, ...]]]}; trtexec
# writes [{"name", "dimensions": "1x1000", "values": [...]}, ...] for one inference.

_FIX = "write it with `polygraphy run --save-outputs` or trtexec --exportOutput"
_Loaded = dict[str, NDArray[Any]]


def from_json(path: Path) -> list[_Loaded]:
    """Return the stored outputs of a Polygraphy file (first runner) or of trtexec (one inference).

    Raises:
        InputFileError: unreadable, or neither of the two.
    """
    content = read_json(path)
    try:
        if isinstance(content, dict):
            return _polygraphy(content)
        return [_trtexec(content)] if content else []
    except (
        KeyError,
        IndexError,
        TypeError,
        ValueError,
        EOFError,
        SyntaxError,
        binascii.Error,
        OverflowError,
    ) as error:
        problem = f"the file does not hold stored outputs: {type(error).__name__} {error}"
        raise InputFileError(problem, fix=_FIX, where=str(path)) from error


def _polygraphy(content: Mapping[str, Any]) -> list[_Loaded]:
    _, iterations = content["lst"][0]
    return [
        {
            str(name): _array(value)
            for name, value in iteration["outputs"].items()
            if name != "polygraphy_class"
        }
        for iteration in iterations
    ]


def _array(value: Any) -> NDArray[Any]:
    text = value["values"]["array"] if "values" in value else value["array"]
    return decode_array(base64.b64decode(text, validate=True))


def _trtexec(content: list[Any]) -> _Loaded:
    outputs = {}
    for entry in content:
        shape = [int(dim) for dim in str(entry["dimensions"]).split("x") if dim]
        outputs[str(entry["name"])] = np.asarray(entry["values"], dtype=np.float64).reshape(shape)
    return outputs


# --- raw tensors -----------------------------------------------------------------------------------------------------
# Raw tensors of trtexec --dumpRawBindingsToFile: `name.dims.Type.raw`, newer `name.output.dims.type.raw`.

_NAME = re.compile(
    r"(?P<name>.+?)(?:\.(?P<side>input|output))?\.(?P<dims>\d+(?:\.\d+)*)\.(?P<type>[A-Za-z]\w*)\.raw"
)
_NUMPY: dict[DType, type[np.generic]] = {
    DType.FLOAT64: np.float64,
    DType.FLOAT32: np.float32,
    DType.FLOAT16: np.float16,
    DType.INT64: np.int64,
    DType.INT32: np.int32,
    DType.INT8: np.int8,
    DType.UINT8: np.uint8,
    DType.BOOL: np.bool_,
}


def from_raw(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensor in a .raw file by its name; an empty dict if the file name says that it is an input.

    Raises:
        InputFileError: the file name does not contain shape and type, or they do not match the size of the file.
    """
    match = _NAME.fullmatch(path.name)
    dtype = DType.parse(match["type"]) if match else DType.UNKNOWN
    if match is None or (dtype not in _NUMPY and dtype is not DType.BFLOAT16):
        raise InputFileError(
            "the file name must contain the name, dimensions and type of a tensor",
            fix="keep the names that trtexec writes: output.1.1000.Float.raw",
            where=str(path),
        )
    if match["side"] == "input":
        return {}
    shape = [int(dim) for dim in match["dims"].split(".")]
    try:
        values = np.fromfile(path, dtype=np.uint16 if dtype is DType.BFLOAT16 else _NUMPY[dtype])
        if dtype is DType.BFLOAT16:
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return {match["name"]: values.reshape(shape)}
    except (OSError, ValueError) as error:
        raise InputFileError(
            f"the file cannot be read as {dtype} values of shape {'x'.join(match['dims'].split('.'))}: {error}",
            fix="dump the tensor again in a linear format; vectorized formats (CHW32) cannot be read",
            where=str(path),
        ) from error


# --- playing back ----------------------------------------------------------------------------------------------------
# Returns stored outputs in the order of the samples from which they were computed.

Outputs = Mapping[str, NDArray[Any]]
"""One sample's outputs by name."""

_READERS: dict[str, Callable[[Path], Sequence[Outputs]]] = {".npz": from_npz, ".json": from_json}


class Player:
    """A runner that returns the next stored outputs at each call, and ignores its inputs."""

    inputs: tuple[TensorInfo, ...] = ()
    at_once = 1

    def __init__(self, stored: Sequence[Outputs], description: str) -> None:
        self._stored = stored
        self._next = 0
        self.description = description
        self.outputs: tuple[str, ...] = tuple(stored[0])

    def __len__(self) -> int:
        """Number of samples with outputs."""
        return len(self._stored)

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:  # noqa: ARG002 -- a protocol
        """Return the outputs of the next sample.

        Raises:
            InputFileError: there were outputs for fewer samples.
        """
        if self._next == len(self._stored):
            raise InputFileError(
                f"the file holds the outputs of {count_noun(len(self._stored), 'sample')}, but more samples were passed",
                fix="pass as many samples as there are stored outputs: --samples x.npz[0:10], or set compare.limit",
                where=self.description,
            )
        self._next += 1
        return dict(self._stored[self._next - 1])


class Unfed:
    """Samples without inputs, for a comparison of two sets of stored outputs."""

    meaningful = True
    digest = ""

    def __init__(self, count: int, labels: Sequence[int] = ()) -> None:
        self._count = count
        self._labels = labels
        self.description = f"{count_noun(count, 'stored output')}"

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Sample]:
        for number in range(self._count):
            label = int(self._labels[number]) if self._labels else None
            yield Sample(name=f"sample {number}", feeds={}, label=label)


def open_stored(path: Path) -> Player:
    """Open stored outputs for replay.

    Accepted files: .npz (arrays of N rows are N samples), JSON of `polygraphy run --save-outputs` and of trtexec
    --exportOutput, .raw files of trtexec --dumpRawBindingsToFile (a folder, or one file), and folders of these, one
    sample each, in the order of their names and numbers.

    Raises:
        InputFileError: the file is unreadable, has no known form, or its samples have different outputs.
    """
    stored = _read(path)
    names = set(stored[0]) if stored else set()
    odd = next((number for number, outputs in enumerate(stored) if set(outputs) != names), None)
    if not names or odd is not None:
        problem = (
            "the file holds no outputs"
            if odd is None
            else f"the file has different outputs in sample {odd} than in the first"
        )
        raise InputFileError(problem, fix="store the same outputs for every sample", where=str(path))
    return Player(stored, f"stored outputs {path.name}")


def _read(path: Path) -> list[Outputs]:
    if not path.exists():
        raise InputFileError("the file or folder does not exist", fix="check the path", where=str(path))
    if path.is_file():
        return _file(path)
    entries = sorted((entry for entry in path.iterdir() if not entry.name.startswith(".")), key=_natural)
    raws = [entry for entry in entries if entry.suffix == ".raw"]
    if raws:
        return [{name: array for entry in raws for name, array in from_raw(entry).items()}]
    return [outputs for entry in entries for outputs in _read(entry)]


def _file(path: Path) -> list[Outputs]:
    if path.suffix == ".raw":
        return [from_raw(path)]
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise InputFileError(
            f"{path.suffix or 'no'} suffix: not a file of stored outputs",
            fix="pass .npz, .json, .raw, or a folder of them",
            where=str(path),
        )
    return list(reader(path))


def _natural(path: Path) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key for names with numbers: sample10 comes after sample9."""
    parts = re.findall(r"\d+|\D+", path.name)
    return tuple((not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)
