"""Writes models. Before a file is written, types and shapes are checked, and onnxruntime opens the model.

A rewrite of ours that makes an invalid model is found here and not in the builder, which blames the model. The check
demands no new failure: a model with plug-in operators, or with types that onnxruntime's CPU lacks, is compared with the
file that it was made from. Heavy weights are only declared, so that the cost depends on the nodes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from qdqtool.errors import Bug, InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.read import read
from qdqtool.graph.onnx_io.save import disagreement, save, without_weights
from qdqtool.graph.view import Model
from qdqtool.runtime.runner import refusal

_LONGEST: Final = 300
"""Largest number of characters quoted from a library's message."""


def write(model: Model, out: Path, *, step: str) -> None:
    """Check a model that the step `step` made, and write it to the file `out`.

    Raises:
        Bug: the model is invalid, and the file that it was made from is not.
        UsageError: `out` is the file that the model was read from.
        InputFileError: the folder cannot be written.
    """
    save(check_written(model, step=step), out)


def check_written(model: Model, *, step: str) -> Model:
    """Return the model if it is valid, or if its source file was already invalid.

    Valid means that types and shapes agree and onnxruntime opens the model.

    Raises:
        Bug: the model is invalid, and the file that it was made from is not.
    """
    for check, problem in (
        (disagreement, "is not valid ONNX"),
        (_check_without_weights, "does not open in onnxruntime"),
    ):
        message = check(model.proto)
        if message is not None and not _was_so(check, model.path):
            raise Bug(
                f"the model that {step!r} wrote {problem}: {message[:_LONGEST]}; nothing was written",
                fix="this is a mistake in qdqtool, not in the model; please report it with the model",
                where=str(model.path),
            )
    return model


def _check_without_weights(proto: Any) -> str | None:
    return refusal(without_weights(proto))


def _was_so(check: Callable[[Any], str | None], source: Path) -> bool:
    """Return True if the source file of the model fails `check` too."""
    if not source.is_file():
        return False
    try:
        return check(read(source)) is not None and check(load(source).proto) is not None
    except InputFileError:
        return False  # the file is gone or has changed since, so it proves nothing
