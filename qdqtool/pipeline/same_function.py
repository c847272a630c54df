"""Proves on one sample that our edits of a model left alone what it computes, or says that the mistake is ours.

onnx's opset converter is wrong about some operators, and nobody notices before the accuracy of the engine is looked
at. So the file and what became of it run side by side wherever an opset was raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from qdqtool.backends.ort import open_model, open_runner
from qdqtool.core.protocols import Feeds, Sample
from qdqtool.errors import Bug, InputFileError
from qdqtool.graph.canonical.opset import was_raised
from qdqtool.graph.model import Model

if TYPE_CHECKING:
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)
_SHARE = {"float64": 1e-3, "float32": 1e-3, "float16": 2e-2}
"""Largest difference by element type, as a share of the output's largest magnitude: rounding, in another order."""
_FIX = "export the model with opset 13 or newer, and report this with the model"


def check_conversion(model: Model, samples: Iterable[Sample]) -> None:
    """Compare the file of `model` with the model on the first sample, where its opset was raised.

    A file that does not run on onnxruntime, or not twice alike, is not compared.

    Raises:
        Bug: the model does not run any more, or computes something else.
    """
    if not was_raised(model.notes):
        return
    sample = next(iter(samples)).feeds
    try:
        original = open_runner(model.path, description="the file")
        before, again = original.run(sample), original.run(sample)
    except InputFileError as error:
        _log.info("%s does not run as it is, so its conversion was not compared: %s", model.path, error)
        return
    after = _run(model, sample)
    for name, value in before.items():
        if name in after and _is_close(again[name], value) and not _is_close(after[name], value):
            raise Bug(
                f"raising the opset changed what the model computes: output {name!r} is another one",
                fix=_FIX,
                where=str(model.path),
            )


def _run(model: Model, sample: Feeds) -> dict[str, NDArray[Any]]:
    try:
        return open_model(model, description="what was made of it").run(sample)
    except InputFileError as error:
        raise Bug(
            f"the file runs, and what became of it by raising its opset does not: {error.what}",
            fix=_FIX,
            where=str(model.path),
        ) from error


def _is_close(one: NDArray[Any], other: NDArray[Any]) -> bool:
    # A Squeeze that was given its axes keeps a batch of length 1, which the one without axes took away.
    one, other = np.squeeze(one), np.squeeze(other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    share = _SHARE.get(other.dtype.name)
    if share is None:
        return True  # integers follow from comparisons, which rounding may turn
    finite = np.isfinite(other) & np.isfinite(one)
    if not np.array_equal(np.isfinite(other), np.isfinite(one)):
        return False
    limit = share * float(np.abs(other[finite]).max(initial=0)) + 1e-6
    return bool((np.abs(one[finite].astype(np.float64) - other[finite].astype(np.float64)) <= limit).all())
