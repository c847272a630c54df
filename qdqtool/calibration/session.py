"""Opening a model in onnxruntime for collection."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.save import FOLDER_OPTION
from qdqtool.io.files import native_path


def open_session(model: Path, threads: int, home: Path | None = None) -> Any:
    """An onnxruntime session on the CPU that uses `threads` threads inside one run.

    Weights outside the file are looked for in `home`, where that is not its folder.

    Optimizations stay on: the values that are fetched are the same, and fusions between them are kept.

    Raises:
        InputFileError: onnxruntime cannot run the model.
    """
    return _opened(model, _options(threads), home)


def open_blocked(
    model: Path, threads: int, ordered: Collection[str] = (), home: Path | None = None
) -> tuple[Any, dict[str, str]]:
    """The same, but tensors of convolutions, less those in `ordered`, are returned in blocks of channels, as computed.

    With the session come the names under which such outputs are found. Beside `model` a copy of it is written, as
    onnxruntime optimized it.

    Raises:
        InputFileError: onnxruntime cannot run the model.
    """
    import onnxruntime

    from qdqtool.graph.instrumented.blocked import return_blocked

    saved = model.with_name("optimized.onnx")
    options = _options(threads)
    options.optimized_model_filepath = str(saved)
    options.add_session_config_entry(
        "session.optimized_model_external_initializers_file_name", "optimized.data"
    )
    session = _opened(model, options, home)
    names = return_blocked(saved, ordered)
    if not names:
        return session, names
    del session
    options = _options(threads)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return _opened(saved, options), names


@lru_cache(maxsize=1)
def channels_per_block() -> int:
    """How many channels onnxruntime puts into a block on this processor: to so many it fills up those of a convolution."""
    import onnxruntime

    from qdqtool.graph.instrumented.blocked import example_model, filled_up

    with TemporaryDirectory(prefix="qdqtool-") as folder:
        saved = Path(folder) / "optimized.onnx"
        options = _options(1)
        options.optimized_model_filepath = str(saved)
        onnxruntime.InferenceSession(example_model(), options, providers=["CPUExecutionProvider"])
        return filled_up(saved)


def _options(threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what goes wrong is raised; nothing is also printed
    if threads == 1:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


_UNKNOWN_OPERATOR = "is not a registered function/op"
"""What onnxruntime says of an operator that neither it nor the model defines."""


def _opened(model: Path, options: Any, home: Path | None = None) -> Any:
    import onnxruntime

    source: str | bytes = native_path(model)
    if home is not None:
        options.add_session_config_entry(FOLDER_OPTION, native_path(home))
        source = model.read_bytes()
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except failures() as error:
        # The file is a copy that nobody but this process knows.
        said = first_line(error).replace(f"Load model from {model} failed:", "")
        fix = "check that the float model itself runs: qdqtool calibrates on onnxruntime"
        if _UNKNOWN_OPERATOR in said:
            fix = (
                "qdqtool calibrates on onnxruntime, which does not know this operator: export the model with ONNX's own "
                "operators, or, if a quantization tool put it there, start from the float model"
            )
        raise InputFileError(f"onnxruntime cannot run the model: {said}", fix=fix) from error


def giving_back() -> Any:
    """Options of a run after which a session keeps no more memory than it had when it was opened."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def failures() -> tuple[type[Exception], ...]:
    """What onnxruntime raises when a model cannot be opened or run."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    names = (
        "Fail",
        "InvalidArgument",
        "InvalidGraph",
        "InvalidProtobuf",
        "NotImplemented",
        "RuntimeException",
        "EPFail",
    )
    return (*(getattr(state, name) for name in names), RuntimeError, ValueError)


def first_line(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).splitlines() or [type(error).__name__])[0]
