"""Writes models atomically and reproducibly, after a check that types and shapes agree."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx

from qdqtool.errors import UsageError
from qdqtool.graph.onnx_io.deferred import byte_size, content, from_home, home_of, in_memory, whole
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.read import serialize_in_pieces
from qdqtool.graph.onnx_io.walk import skeleton
from qdqtool.graph.view import Model
from qdqtool.io.files import replacing, write_bytes

# --- valid -----------------------------------------------------------------------------------------------------------
# Checks that the types and shapes of a model are consistent, without its heavy weights.


_log = logging.getLogger(__name__)


def disagreement(proto: onnx.ModelProto) -> str | None:
    """Return onnx's message about the first node with contradictory types or shapes; None if there is none.

    If inference exceeds the memory or time for a model of this size, the result is None.
    """
    try:
        run_pass("judge", skeleton(proto)[0])
    except PassRefused as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return lines[0] if lines else "shape inference refuses it"
    except PassExceeded as error:
        _log.warning("types and shapes were not checked: shape inference %s", error)
    return None


def without_weights(proto: onnx.ModelProto) -> bytes:
    """Return the model with its heavy weights declared as inputs, for programs that read only types and shapes."""
    return bytes(skeleton(proto)[0].SerializeToString())


# --- save ------------------------------------------------------------------------------------------------------------


SINGLE_FILE_LIMIT = (1 << 31) - (64 << 20)
"""Most bytes of weights of a model in one file; protobuf ends at 2 GiB."""
_ALIGNMENT = 4096
"""Alignment in bytes; lets readers map the weights into memory."""
_INSIDE = 64 << 20
"""Most bytes of weights in memory that go into the model file if the other weights stay in their files."""

FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
"""Key of onnxruntime's session option for the folder of weights; valid only for models passed as bytes."""


def save(model: Model, path: Path) -> None:
    """Write the model to `path`; weights of 2 GiB and more go to `<name>.<digest>.data` beside it.

    Raises:
        UsageError: `path` is the file that the model was read from.
        InputFileError: the folder cannot be written.
    """
    if path.exists() and model.path.exists() and path.samefile(model.path):
        raise UsageError(
            "the output would overwrite the original model", fix="choose another output path", where=str(path)
        )
    if weight_bytes(model) < SINGLE_FILE_LIMIT:
        with replacing(path) as draft, draft.open("wb") as stream:
            stream.writelines(serialize_in_pieces(model.proto))
    else:
        save_split(model, path)


def serialize(model: Model) -> bytes:
    """Return the model as one block of bytes; only for models whose weights stay below `SINGLE_FILE_LIMIT`."""
    return bytes(whole(model.proto).SerializeToString(deterministic=True))


def digest(model: Model) -> str:
    """Return the SHA-256 digest of the whole model; reads the weights one by one."""
    light, heavy = skeleton(model.proto)
    sha = hashlib.sha256(light.SerializeToString(deterministic=True))
    for tensor in heavy:
        sha.update(f"{tensor.name} {tensor.data_type} {list(tensor.dims)}".encode())
        sha.update(content(tensor))
    return sha.hexdigest()


def weight_bytes(model: Model) -> int:
    """Return the bytes of all initializers."""
    return sum(byte_size(tensor) or 0 for tensor in model.proto.graph.initializer)


def save_split(model: Model, path: Path) -> None:
    """Write the model with its weights beside it, without a second copy of the weights in memory.

    The weights are written first, under a name made of their content, so that no reader finds a mix of old and new.
    """
    _, heavy = skeleton(model.proto)
    _save(model, path, path.with_name(f"{path.name}.{_digest(heavy)[:12]}.data"), lasting=True)


def save_beside(model: Model, path: Path) -> None:
    """Write the model into a folder without other readers; the weights go into `path`.data, which is replaced."""
    _save(model, path, path.with_name(f"{path.name}.data"), lasting=False)


def save_around(model: Model, path: Path) -> Path | None:
    """Write the model without moving its external weights. Return the folder of the weights for the reader.

    None if the weights are not all in one folder, or if too many are in memory; the model is then written as by
    `save_beside`.
    """
    light, heavy = _apart(model)
    home, stubs = leave_in_place(heavy, path.with_name(f"{path.name}.data"))
    light.graph.initializer.extend(stubs)
    write_bytes(path, light.SerializeToString(deterministic=True), lasting=False)
    return home


def leave_in_place(
    heavy: Sequence[onnx.TensorProto], data: Path
) -> tuple[Path | None, tuple[onnx.TensorProto, ...]]:
    """Return the folder of the weights that stay in their files, and references to all heavy weights.

    If the weights are not all in one folder, or if too many are in memory, all weights are written to `data`, in the
    folder of the model.
    """
    home = home_of(heavy)
    inside = sum(map(in_memory, heavy))
    if home is not None and inside < _INSIDE:
        return home, tuple(map(from_home, heavy))
    return None, store_weights(heavy, data)


def _save(model: Model, path: Path, data: Path, *, lasting: bool) -> None:
    light, heavy = _apart(model)
    light.graph.initializer.extend(store_weights(heavy, data, lasting=lasting))
    write_bytes(path, light.SerializeToString(deterministic=True), lasting=lasting)


def _apart(model: Model) -> tuple[onnx.ModelProto, tuple[onnx.TensorProto, ...]]:
    """Split a model into a copy without its heavy weights, and these weights."""
    light, heavy = skeleton(model.proto)
    names = {tensor.name for tensor in heavy}
    inputs = [value for value in model.proto.graph.input if value.name not in names]
    del light.graph.input[:]
    light.graph.input.extend(inputs)
    return light, heavy


def store_weights(
    tensors: Iterable[onnx.TensorProto], data: Path, *, lasting: bool = False
) -> tuple[onnx.TensorProto, ...]:
    """Write the values of `tensors` to `data`; return tensors that refer to that file.

    Without `lasting`, no other program reads that folder.
    """
    stubs = []
    with replacing(data, lasting=lasting) as draft, draft.open("wb") as stream:
        for tensor in tensors:
            stream.write(b"\0" * (-stream.tell() % _ALIGNMENT))
            values = content(tensor)
            stubs.append(_reference(tensor, data.name, stream.tell(), len(values)))
            stream.write(values)
    return tuple(stubs)


def _reference(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> onnx.TensorProto:
    stub = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    stub.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        stub.external_data.add(key=key, value=str(value))
    return stub


def _digest(tensors: Iterable[onnx.TensorProto]) -> str:
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(content(tensor))
    return sha.hexdigest()
