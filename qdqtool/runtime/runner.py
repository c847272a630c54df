"""Runners: models on onnxruntime. They emulate types and blocks that its CPU kernels lack or round differently."""

from __future__ import annotations

import logging
import re
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.core.protocols import Feeds
from qdqtool.core.tensors import DType, TensorInfo
from qdqtool.errors import InputFileError
from qdqtool.graph.emulation.emulate_blocks import block_emulation
from qdqtool.graph.onnx_io.save import save_around, save_beside, serialize, weight_bytes
from qdqtool.graph.typed.emulate import emulate_types, holds_narrow
from qdqtool.graph.view import Model
from qdqtool.platform import give_back, processors, resident_mib
from qdqtool.runtime.device import CPU, Provider, current
from qdqtool.runtime.session import (
    LARGE,
    MEMORY,
    RuntimeOptions,
    failures,
    message_of,
    open_session,
    open_streamed,
)

if TYPE_CHECKING:
    import onnxruntime


_log = logging.getLogger(__name__)
_ADVICE = {
    "Protobuf serialization failed|No space left": (
        "onnxruntime writes a temporary file: free some space in the folder of temporary files, or set TMPDIR to another folder"
    ),
    r"is not a registered function/op|No Op registered|NOT_IMPLEMENTED": (
        "onnxruntime has no kernel for this operator: replace it, or cut the model before it"
    ),
    r"Protobuf parsing failed|INVALID_PROTOBUF|ModelProto does not have a graph|No graph was found": (
        "the file is not an ONNX model, or is damaged: export it again"
    ),
    r"[Ee]xternal data|file_size|GetFileLength": "put the file with the weights next to the model",
    r"install TensorRT libraries": "pip install tensorrt; or choose --device cuda",
    MEMORY: "not enough memory: use a smaller batch; on a GPU also --device cpu",
}
"""Fixes for frequent error messages of onnxruntime."""


_EMULATED = r"NOT_IMPLEMENTED|\btrt:|[Ff]loat4e2m1"
"""Messages of onnxruntime about kernels, operators and types that the CPU lacks and that may be emulated."""
_LACKING = rf"{_EMULATED}|{MEMORY}"
"""Messages that do not mean that a model is invalid."""


_CROWD = 8
"""Largest number of samples that run at the same time: each holds the activations of a whole model."""


class OrtRunner:
    """Runs one model in an onnxruntime session."""

    def __init__(
        self, session: onnxruntime.InferenceSession, description: str, where: str | None, at_once: int = 1
    ) -> None:
        self._session = session
        self._where = where
        self.description = description
        self.at_once = at_once
        self.inputs: tuple[TensorInfo, ...] = tuple(_info(value) for value in session.get_inputs())
        self.outputs: tuple[str, ...] = tuple(
            value.name for value in session.get_outputs() if value.type.startswith("tensor(")
        )

    def run(self, feeds: Feeds) -> dict[str, NDArray[Any]]:
        """Run the model and return one array per tensor output.

        Raises:
            InputFileError: names, types or shapes of the feeds do not fit, or the model fails on them.
        """
        _check(self.inputs, feeds, self._where)
        inputs = {info.name: feeds[info.name] for info in self.inputs}
        try:
            values = self._session.run(list(self.outputs), inputs)
        except failures() as error:
            raise _trouble("the model fails on this sample", error, self._where) from error
        return dict(zip(self.outputs, values, strict=True))


def open_runner(
    model: Path | bytes,
    *,
    description: str,
    provider: Provider | None = None,
    faithful: bool = True,
    crowded: bool = False,
    optimized: bool = True,
    threads: int = 0,
) -> OrtRunner:
    """Open a runner for a model in a file (external data next to it) or in memory.

    `provider`, `faithful`, `optimized` and `threads` are those of `RuntimeOptions`; without a provider it is the one
    in use. With `crowded`, several samples run in parallel and share the cores, which finishes many samples sooner
    than all cores on one sample; `threads` is then ignored. A faithful model on the CPU rounds to FP16 and BF16 after
    every node (`graph.typed.emulate`), and the description says so.

    Raises:
        InputFileError: the file is missing, damaged, or has content that onnxruntime cannot run.
        MissingPackage: the provider cannot be loaded.
    """
    where = str(model) if isinstance(model, Path) else None
    provider = provider or current()
    at_once = _at_once(crowded)
    if isinstance(model, Path) and not model.is_file():
        raise InputFileError("the file does not exist", fix="check the path", where=where)
    count = processors() // at_once if crowded else threads
    options = RuntimeOptions(
        provider=provider, exact=faithful, faithful=faithful, threads=count, optimized=optimized
    )
    return _runner(model, options, description, at_once, where, rounds=faithful and provider == CPU)


def _at_once(crowded: bool) -> int:
    """Return how many samples run at the same time: 1 on a GPU, because each sample needs its own memory."""
    return min(processors(), _CROWD) if crowded and current() == CPU else 1


def open_piece(
    model: Path | bytes, *, description: str, optimized: bool = True, threads: int = 0, packed: bool = True
) -> OrtRunner:
    """Open a runner for one of many pieces that stay open together, or for a model that returns many tensors.

    The memory of a run is freed after it: with an arena it would stay as large as its two largest runs. `optimized`,
    `threads` and `packed` are those of `RuntimeOptions`.

    Raises:
        InputFileError: onnxruntime cannot run the model.
    """
    where = str(model) if isinstance(model, Path) else None
    options = RuntimeOptions(
        provider=current(), threads=threads, optimized=optimized, arena=False, packed=packed
    )
    return _runner(model, options, description, 1, where)


def open_model(model: Model, *, description: str, crowded: bool = False) -> OrtRunner:
    """Open a runner for a model, as `open_runner` does.

    A large model is written to a folder that exists as long as the runner.

    Of a block of bytes onnxruntime makes three copies, one of which the session keeps (ResNet-50: 100 MB each).

    Raises:
        InputFileError: onnxruntime cannot run the model.
    """
    at_once = _at_once(crowded)
    options = RuntimeOptions(provider=current(), threads=processors() // at_once if crowded else 0)
    return _runner(model, options, description, at_once, None)


def _runner(
    model: Model | Path | bytes,
    options: RuntimeOptions,
    description: str,
    at_once: int,
    where: str | None,
    *,
    rounds: bool = True,
) -> OrtRunner:
    """Open a runner for a model. If `rounds` is True, emulate FP16 and BF16."""
    before = resident_mib()
    source, words = (emulate_types(model, _output_types) if rounds else None) or (model, "")
    folder: tempfile.TemporaryDirectory[str] | None = None
    try:
        if isinstance(source, Model):
            session, folder = _session_of(source, options)
        else:
            session = open_session(source, options)
    except failures() as error:
        # Use the original model: after the rounding Casts are inserted, no rule recognizes its blocks.
        instead = _without_blocks(model, str(error))
        if instead is None:
            raise _trouble("onnxruntime cannot open the model", error, where) from error
        words = " and ".join(filter(None, (words, "blocks of FP4 or FP8")))
        try:
            session = open_session(instead, options)
        except failures() as left:
            raise _trouble("onnxruntime cannot open the model", left, where) from left
    if resident_mib() - before >= LARGE >> 20:
        give_back()  # half of this memory is only needed to read and optimize the model
    runner = OrtRunner(session, f"{description}, {words} emulated" if words else description, where, at_once)
    if folder is not None:
        weakref.finalize(runner, folder.cleanup)
    return runner


def _session_of(
    model: Model, options: RuntimeOptions
) -> tuple[onnxruntime.InferenceSession, tempfile.TemporaryDirectory[str] | None]:
    """Open a session; also return the folder to which the model was written, None if it was not written."""
    if weight_bytes(model) < LARGE and options.packed:
        return open_session(serialize(model), options), None
    streamed = open_streamed(model.proto, options)
    if streamed is not None:
        return streamed, None
    folder = tempfile.TemporaryDirectory(prefix="qdqtool-model-", ignore_cleanup_errors=True)
    path = Path(folder.name) / "model.onnx"
    session = _open_around(model, path, options)
    if session is None:
        save_beside(model, path)
        session = open_session(path, options)
    return session, folder


def _output_types(model: Model) -> dict[str, DType]:
    """Return the types of a model's outputs; empty if the model does not open."""
    try:
        session, _ = _session_of(model, RuntimeOptions(optimized=False))
    except failures() as error:
        _log.debug("the types inside stay unknown: %s", error)
        return {}
    return {value.name: _info(value).dtype for value in session.get_outputs()}


def _open_around(model: Model, path: Path, options: RuntimeOptions) -> onnxruntime.InferenceSession | None:
    """Open a session that reads weights where they are; None if they are in several folders, or if the model does not open."""
    home = save_around(model, path)
    if home is None:
        return None
    try:
        return open_session(path, replace(options, home=home))
    except failures() as error:
        _log.debug("is opened with a copy of its weights: %s", error)
        return None


def open_rewritten(model: Model, rewrite: Callable[[Path], bool], *, description: str) -> OrtRunner | None:
    """Open a runner for a model that onnxruntime optimized and `rewrite` changed; None if `rewrite` changes nothing.

    Weights go through a file, as in `open_model`.

    Raises:
        InputFileError: onnxruntime cannot run the model.
    """
    if holds_narrow(model) or current() != CPU:
        return None  # the roundings would be removed; kernels of other providers have their own layouts
    with tempfile.TemporaryDirectory(prefix="qdqtool-model-", ignore_cleanup_errors=True) as folder:
        saved = Path(folder) / "optimized.onnx"
        source = Path(folder) / "model.onnx"
        save_beside(model, source)
        try:
            open_session(source, RuntimeOptions(saved=saved, planned=False))
            if not rewrite(saved):
                return None
            session = open_session(saved, RuntimeOptions(optimized=False, planned=False, patterned=False))
        except failures() as error:
            raise _trouble("onnxruntime cannot open the model", error, None) from error
    return OrtRunner(session, description, None)


def refusal(model: bytes) -> str | None:
    """Return the reason why onnxruntime refuses the types, shapes or operators of a model; None if the model opens.

    A kernel or a type that the CPU lacks, and missing memory, do not show a fault of the model: the result is None
    for them too.
    """
    try:
        open_session(model, RuntimeOptions(threads=1, optimized=False, planned=False))
    except failures() as error:
        if re.search(_LACKING, str(error)):
            _log.info("onnxruntime cannot check the model: %s", error)
            return None
        return message_of(error)
    return None


def _without_blocks(model: Model | Path | bytes, message: str) -> bytes | None:
    """Return an equivalent model that needs no kernels for blocks of FP4 and FP8; None if other kernels are missing."""
    if not re.search(_EMULATED, message):
        return None
    blocks = block_emulation(serialize(model) if isinstance(model, Model) else model)
    emulation = None if blocks is None else emulate_types(blocks)
    return blocks if emulation is None else serialize(emulation[0])


def _info(value: Any) -> TensorInfo:
    word = re.fullmatch(r"tensor\((\w+)\)", value.type)
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else str(dim or "?") for dim in value.shape or ())
    return TensorInfo(name=value.name, dtype=DType.parse(word[1]) if word else DType.UNKNOWN, shape=dims)


def _check(inputs: tuple[TensorInfo, ...], feeds: Feeds, where: str | None) -> None:
    mistakes = []
    for info in inputs:
        array = feeds.get(info.name)
        if array is None:
            mistakes.append(f"input {info.name!r} is missing (fed: {', '.join(sorted(feeds)) or 'nothing'})")
            continue
        dtype = DType.parse(np.asarray(array).dtype.name)
        if info.dtype is not DType.UNKNOWN and dtype is not info.dtype:
            mistakes.append(f"input {info.name!r} needs {info.dtype}, not {dtype}")
        if not info.fits(array.shape):
            expected, fed = (
                "x".join(map(str, dims)) or "a scalar" for dims in (info.shape or (), array.shape)
            )
            mistakes.append(f"input {info.name!r} needs {expected}, not {fed}")
    if mistakes:
        raise InputFileError(
            "; ".join(mistakes),
            fix="change the samples to match the model, or change the preprocessing",
            where=where,
        )


def _trouble(problem: str, error: Exception, where: str | None) -> InputFileError:
    advice = next(
        (fix for pattern, fix in _ADVICE.items() if re.search(pattern, str(error))),
        "run the model with onnxruntime alone, to see whether the model or the samples are wrong",
    )
    return InputFileError(f"{problem}: {message_of(error)[:500]}", fix=advice, where=where)
