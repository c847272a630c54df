"""Loads or references weights in files beside the model; checks them first and trusts no path."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import onnx

from qdqtool.core.wording import counted
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io import deferred
from qdqtool.graph.onnx_io.walk import tensors
from qdqtool.graph.onnx_io.weight import byte_size
from qdqtool.io.files import held_bytes
from qdqtool.io.memory import VARIABLE, budget, budget_words, is_stated

_UNHELD = 1 << 30
"""Bytes that weights may claim beyond the content of their files; valid models share ranges or omit zeros."""
_LONGEST_NAME = 4096
"""Longest path in bytes; no file system accepts a longer one."""


def attach(proto: onnx.ModelProto, path: Path) -> int:
    """Read or reference all external data of the model at `path`; return its bytes.

    Heavy initializers of a very large model become references, the rest is read. Wherever a tensor stands (graph, body,
    function, training information, sparse tensor) it is taken in here or refused: what were left external, onnx itself
    would look for in the current directory later on.

    Raises:
        InputFileError: a file is missing, too short, or outside the model's folder; the weights that are read, and one that
            stays in its file, exceed the budget of memory.
    """
    weights = proto.graph.initializer
    is_large = sum(byte_size(tensor) or 0 for tensor in weights) >= deferred.FROM
    places: list[_Place] = []
    total = kept = 0
    for group, refers in ((weights, is_large), (tensors(proto), False)):
        found = []
        for tensor in group:
            if tensor.data_location == onnx.TensorProto.EXTERNAL and not deferred.is_deferred(tensor):
                found.append(_placed(tensor, path))
                size = found[-1].size
                total += size
                stays = refers and deferred.is_worth(tensor)
                kept += 0 if stays else size
                needed = kept + size if stays else kept  # one weight that stays in its file is read at a time
                if needed > (most := budget()):
                    what = f"increases the weights to {counted(needed, 'byte', grouped=True)}, more than {budget_words(most)}"
                    fix = f"allow more with --max-memory or {VARIABLE}, or use a smaller model"
                    raise _bad(path, tensor, what, fix)
        places += found
        if total > _UNHELD and found and not is_stated():
            _check_held(places, total, path)
        for place in found:
            _take(place, path, refers and deferred.is_worth(place.tensor))
    return total


class _Place(NamedTuple):
    """Position of the bytes of a tensor."""

    tensor: onnx.TensorProto
    file: Path
    offset: int
    size: int


def _placed(tensor: onnx.TensorProto, path: Path) -> _Place:
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
        what = f"needs {size} bytes for its shape but declares {length} at offset {offset}"
        raise _bad(path, tensor, what, "export the model again")
    return _Place(tensor, file, offset, size)


def _check_held(places: list[_Place], total: int, path: Path) -> None:
    """Reject weights that claim far more bytes than their files hold: holes, or one range named repeatedly."""
    ranges: dict[Path, list[tuple[int, int]]] = {}
    for place in places:
        ranges.setdefault(place.file, []).append((place.offset, place.offset + place.size))
    there = 0
    for file, named in ranges.items():
        with suppress(OSError), file.open("rb") as stream:  # what cannot be read is told where it is read
            there += held_bytes(stream, named, total - there)
    if total - there > _UNHELD:
        raise InputFileError(
            f"claims {counted(total, 'byte', grouped=True)} of weights in other files, which hold {there:,} of them: the files are sparse, or tensors overlap",
            fix=f"copy the complete files (`cp --sparse=never`), or allow it with --max-memory or {VARIABLE}",
            where=str(path),
        )


def _take(place: _Place, path: Path, refer: bool) -> None:
    """Read the bytes of the tensor, or make it a reference to them; it is not external afterwards."""
    tensor, file, offset, size = place
    try:
        with file.open("rb") as stream:
            if file.stat().st_size - offset < size:
                what = f"needs {size} bytes at offset {offset} of {file.name!r}, which is too short"
                raise _bad(path, tensor, what, f"copy {file.name!r} again: it is truncated")
            if refer:
                deferred.refer(tensor, file, stream, offset, size)
                return
            stream.seek(offset)
            content = stream.read(size)
    except OSError as error:
        what = f"needs external data in {file.name!r}, which cannot be read: {error.strerror}"
        raise _bad(path, tensor, what, f"put {file.name!r} next to the model") from error
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
    """Return the file at `location`, if it is a regular file in or below the model's folder."""
    folder = path.parent.resolve()
    fix = "copy the data file into the model's folder and store a plain file name as its location"
    if not location or "\0" in location:
        raise _bad(path, tensor, "is external but names no file", "export the model again")
    if len(location.encode("utf-8", "replace")) > _LONGEST_NAME:
        what = f"is external with a location of {counted(len(location), 'character')}: {location[:60]!r}..."
        raise _bad(path, tensor, what, "export the model again")
    file = folder / location
    if Path(location).is_absolute() or not _resolved(file).is_relative_to(folder):
        raise _bad(path, tensor, f"points outside the model's folder: {location!r}", fix)
    if not is_file(file):
        what = f"needs external data in {location!r}, which is missing"
        raise _bad(path, tensor, what, f"put {location!r} next to the model")
    return file


def _resolved(file: Path) -> Path:
    """Return the target of a path; for a loop of links the root, which is outside every folder."""
    try:
        return file.resolve()
    except (OSError, RuntimeError):  # older Python releases raise RuntimeError for loops
        return Path(file.anchor)


def is_file(file: Path) -> bool:
    """Return True if a path from a model is a regular file; False if a part of it is too long for the file system."""
    try:
        return file.is_file()
    except OSError:
        return False


def _bad(path: Path, tensor: onnx.TensorProto, what: str, fix: str) -> InputFileError:
    return InputFileError(f"tensor {tensor.name!r} {what}", fix=fix, where=str(path))
