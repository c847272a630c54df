"""Opens a model in onnxruntime for collection."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from qdqtool.errors import InputFileError
from qdqtool.runtime.device import CPU, current
from qdqtool.runtime.session import RuntimeOptions, failures, open_session

_COLLECTING = RuntimeOptions(faithful=False)
"""Options for collecting: models are float, so Q/DQ need not be exact, and waiting threads may spin."""
_UNKNOWN_OPERATOR = "is not a registered function/op"
"""Part of onnxruntime's message about an operator that neither onnxruntime nor the model defines."""


def open_collecting(model: Path, threads: int, home: Path | None = None) -> Any:
    """Open an onnxruntime session that uses `threads` threads for each run.

    Weights outside the file are looked for in `home`, if that is not its folder.

    Optimizations stay on: the values that are fetched are the same, and fusions between them are kept.

    Raises:
        InputFileError: onnxruntime cannot run the model.
    """
    return _opened(model, replace(_COLLECTING, provider=current(), threads=threads, home=home))


def open_blocked(
    model: Path, threads: int, ordered: Collection[str] = (), home: Path | None = None
) -> tuple[Any, dict[str, str]]:
    """Open a session on the CPU that returns tensors of convolutions in blocks of channels, as computed.

    Tensors in `ordered` are returned in their normal layout.

    With the session come the names under which such outputs are found. Beside `model` a copy of it is written, as
    onnxruntime optimized it.

    Raises:
        InputFileError: onnxruntime cannot run the model.
    """
    from qdqtool.graph.instrumented.blocked import return_blocked

    saved = model.with_name("optimized.onnx")
    options = replace(_COLLECTING, threads=threads)
    session = _opened(model, replace(options, home=home, saved=saved))
    names = return_blocked(saved, ordered)
    if not names:
        return session, names
    del session
    return _opened(saved, replace(options, optimized=False)), names


@lru_cache(maxsize=1)
def channels_per_block() -> int:
    """Return how many channels onnxruntime puts into one block on this processor.

    It pads the channels of a convolution to full blocks.
    """
    from qdqtool.graph.instrumented.blocked import example_model, filled_up

    with TemporaryDirectory(prefix="qdqtool-") as folder:
        saved = Path(folder) / "optimized.onnx"
        open_session(example_model(), replace(_COLLECTING, threads=1, saved=saved))
        return filled_up(saved)


def _opened(model: Path, options: RuntimeOptions) -> Any:
    try:
        return open_session(model, options)
    except failures() as error:
        # The file is a copy that nobody but this process knows.
        said = first_line(error).replace(f"Load model from {model} failed:", "")
        fix = "check that the float model itself runs: qdqtool calibrates on onnxruntime"
        if options.provider != CPU:
            fix = f"remove --device {options.provider.word}: the CPU may run models that this provider cannot compile"
        if _UNKNOWN_OPERATOR in said:
            fix = (
                "qdqtool calibrates on onnxruntime, which does not know this operator: export the model with ONNX's own "
                "operators, or, if a quantization tool put it there, start from the float model"
            )
        raise InputFileError(f"onnxruntime cannot run the model: {said}", fix=fix) from error


def first_line(error: Exception) -> str:
    """Return the first line of an error's text; the name of its type if it has no text."""
    return (str(error).splitlines() or [type(error).__name__])[0]
