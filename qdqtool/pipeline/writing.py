"""Writes models that qdqtool has made, after checks of results and validity. A failed check is an error in qdqtool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from qdqtool.backends import writing
from qdqtool.calibration.samples import open_samples
from qdqtool.core.protocols import Feeds, Sample
from qdqtool.errors import Bug, InputFileError, SystemFault, UsageError
from qdqtool.graph.canonical.opset import was_raised
from qdqtool.graph.instrumented.probe import as_written, force_branches
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from qdqtool.pipeline.random_shapes import add_usual_shapes, opener
from qdqtool.runtime.runner import OrtRunner, open_model, open_runner

# --- own models ------------------------------------------------------------------------------------------------------
# Handles failures of models that qdqtool makes for its own use: the step is skipped with a note, and the command continues.
#
# Bias correction, the choice of calibrators, equalization and similar steps run changed copies of the network: with
# other outputs, with a dynamic batch, cut into pieces. If such a copy fails, the user's network is not the cause.


Made = TypeVar("Made")
_log = logging.getLogger(__name__)
_LONGEST: Final = 300
"""Most characters of an error of a runtime that are shown."""


def or_without(
    task: str, make: Callable[[], Made], instead: Callable[[], Made]
) -> tuple[Made, tuple[str, ...]]:
    """Return the result of `make`. If a model that qdqtool wrote for it fails, return `instead()` and a note.

    `instead` must use the files of the user that `make` uses, unless they were used before: `instead` then raises the
    errors of these files.

    Raises:
        SystemFault: the disk is full, or the machine refuses something else.
    """
    try:
        return make(), ()
    except SystemFault:
        raise
    except InputFileError as error:
        _log.info("%s fails", task, exc_info=True)
        result, reason = instead(), _reason(error)
    note = f"{task} was skipped: a model that qdqtool wrote for it does not run. This is a mistake in qdqtool, not in the network; please report it with the network: {reason}"
    return result, (note,)


@contextmanager
def our_fault(check: Callable[[], object]) -> Iterator[None]:
    """Turn an error of running a network in parts into a `Bug`, if the whole network runs on these samples.

    Use it for helper models that a command needs; nothing else may run inside.

    Raises:
        Bug: a helper model fails.
    """
    try:
        yield
    except SystemFault:
        raise
    except InputFileError as error:
        check()
        raise Bug(
            f"running the network in stages failed: a model that qdqtool wrote for it does not run; this is a mistake in qdqtool, not in the network: {_reason(error)}",
            fix="report this with the network; nothing was measured, so it is unknown whether a limit is met",
            where=error.where,
        ) from error


def run_plainly(model: Model, samples: Iterable[Feeds]) -> None:
    """Run the network itself on samples, to find out whether the samples or the network cause the failure.

    Raises:
        InputFileError: they are.
    """
    runner = open_model(model, description="the network")
    for feeds in samples:
        runner.run(feeds)


def _reason(error: InputFileError) -> str:
    return " ".join(error.what.split())[:_LONGEST]


# --- same function ---------------------------------------------------------------------------------------------------
# Checks on one sample that our changes of a model keep its results; otherwise reports a bug of qdqtool.
#
# onnx's opset converter changes the results of some operators, and nobody would notice before the accuracy of the
# engine is measured. So if the opset was raised, the file and the converted model run side by side.


_SHARE = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-2}
"""Largest difference by element type, relative to the output's largest magnitude: rounding in another order."""
_FIX = "export the model with opset 13 or newer, and report this with the model"


_compared: set[tuple[str, int, int]] = set()
"""Files that were compared in this process, by path, size and time of the last change."""


def check_conversion(model: Model, samples: Iterable[Sample] | None = None) -> None:
    """If the opset of `model` was raised, check that the converted model still gives the results of its file.

    One sample is run: the first of `samples`, or a random one. If the network has an If, the sample runs a second and a third time
    with all conditions true, and all false. A file is compared once. A file that does not run on onnxruntime, or gives
    different outputs each time, is not compared.

    Raises:
        Bug: the model no longer runs, or its results have changed.
    """
    if not was_raised(model.notes) or not model.path.is_file():
        return
    if samples is None and _key(model.path) in _compared:
        return
    if samples is None:
        # `model` may already be quantized or in FP16, so the file is opened again.
        model = load(model.path)
        if not was_raised(model.notes):
            return
        samples = _random(model)
    sample = next((entry.feeds for entry in samples), None)
    if sample is None:
        return
    if not _compare(model, sample, partial(open_runner, model.path, description="the file")):
        return
    written = as_written(model)
    for condition in (True, False):
        theirs = force_branches(written, condition)
        # `prepare` replaces an If with a constant condition by its branch; the other branch is compared as it was
        # opened.
        ours = force_branches(load(model.path), condition) if theirs else None
        if ours is not None and theirs is not None:
            _compare(ours, sample, partial(open_model, theirs, description="the file"))
    _compared.add(_key(model.path))


def _key(path: Path) -> tuple[str, int, int]:
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns


def _random(model: Model) -> Iterable[Sample]:
    """Return one random sample; [] if an input does not accept random numbers."""
    inputs = model.view.inputs
    try:
        return [next(iter(open_samples(add_usual_shapes("random:1", inputs, "", opener(model)), inputs)))]
    except (InputFileError, UsageError) as error:
        _log.info("%s cannot be fed random values, so its conversion was not checked: %s", model.path, error)
        return []


def _compare(model: Model, sample: Feeds, opened: Callable[[], OrtRunner]) -> bool:
    """Run the sample on the original file, which `opened` opens, and on `model`, and compare the outputs.

    Return False if the original file does not run.
    """
    try:
        original = opened()
        before, again = original.run(sample), original.run(sample)
    except InputFileError as error:
        _log.info("%s does not run unchanged, so its conversion was not checked: %s", model.path, error)
        return False
    after = _run(model, sample)
    for name, value in before.items():
        if name in after and _is_close(again[name], value) and not _is_close(after[name], value):
            raise Bug(
                f"raising the opset changed what the model computes: output {name!r} differs",
                fix=_FIX,
                where=str(model.path),
            )
    return True


def _run(model: Model, sample: Feeds) -> dict[str, NDArray[Any]]:
    try:
        return open_model(model, description="the converted model").run(sample)
    except InputFileError as error:
        raise Bug(
            f"the file runs, but the model with the raised opset does not: {error.what}",
            fix=_FIX,
            where=str(model.path),
        ) from error


def _is_close(left: NDArray[Any], right: NDArray[Any]) -> bool:
    # A Squeeze with written axes keeps a batch of length 1, which the original Squeeze without axes removes.
    left, right = np.squeeze(left), np.squeeze(right)
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    share = _SHARE.get(right.dtype.name)
    if share is None:
        return True  # integers depend on comparisons, whose result rounding may change
    finite = np.isfinite(right) & np.isfinite(left)
    if not np.array_equal(np.isfinite(right), np.isfinite(left)):
        return False
    limit = share * float(np.abs(right[finite]).max(initial=0)) + 1e-6
    return bool((np.abs(left[finite].astype(np.float64) - right[finite].astype(np.float64)) <= limit).all())


# --- writing ---------------------------------------------------------------------------------------------------------


def write(model: Model, out: Path, *, step: str) -> None:
    """Check a model that the step `step` made, and write it to the file `out`.

    Raises:
        Bug: raising the opset changed what the model computes, or `step` made an invalid model.
        UsageError: `out` is the file that the model was read from.
        InputFileError: the folder cannot be written.
    """
    check_conversion(model)
    writing.write(model, out, step=step)


def check_made(model: Model) -> Model:
    """Check and return a model with inserted Q/DQ that stays in memory and is not written to a file.

    Raises:
        Bug: as `write`.
    """
    check_conversion(model)
    return writing.check_written(model, step="insert")
