"""Writes models for the steps and commands: first checks that a raised opset keeps results, then types and shapes."""

from __future__ import annotations

from pathlib import Path

from qdqtool.backends import writing
from qdqtool.graph.model import Model
from qdqtool.pipeline.same_function import check_conversion


def write(model: Model, out: Path, *, step: str) -> None:
    """Check a model that `step` made, and write it to `out`.

    Raises:
        Bug: raising the opset changed what the model computes, or `step` made an invalid model.
        UsageError: `out` is the file that the model was read from.
        InputFileError: the folder cannot be written.
    """
    check_conversion(model)
    writing.write(model, out, step=step)


def checked(model: Model, *, step: str) -> Model:
    """Check a model that `step` made, and return it to be kept in memory.

    Raises:
        Bug: as `write`.
    """
    check_conversion(model)
    return writing.checked(model, step=step)
