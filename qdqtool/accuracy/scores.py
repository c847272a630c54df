"""From a model output to the scores of its classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_BOX = 4
"""Leading columns of a detector's row: centre x, centre y, width, height."""
_SLACK = 0.05
"""How far outside 0 to 1 a probability may lie that went through a coarse scale."""


def class_rows(output: Floats) -> Floats:
    """The output as rows of class scores (rows x classes): the last axis, or axis 1 of N x C x 1 x 1."""
    if output.ndim == 4 and output.shape[2:] == (1, 1):
        return output[:, :, 0, 0]
    return output.reshape(-1, output.shape[-1]) if output.ndim else output.reshape(1, 1)


def class_scores(output: NDArray[Any]) -> Floats | None:
    """One sample's scores, one per class; None where the output is not understood as scores of one sample.

    Understood are: a vector of scores with any number of axes of length 1 around it (a logit or probability per
    class); rows of boxes (1 x boxes x (4 + 1 + classes), as YOLO heads give them), where a class scores as much as its
    best box does, class score times objectness.
    """
    if max(output.shape, default=1) == output.size:
        return output.reshape(-1).astype(np.float64)
    rows = box_rows(output)
    if rows is None:
        return None
    best: Floats = (rows[:, _BOX : _BOX + 1] * rows[:, _BOX + 1 :]).max(axis=0)
    return best


def box_rows(output: NDArray[Any]) -> Floats | None:
    """One image's boxes (boxes x (4 + 1 + classes)), as YOLO heads give them; None where the output holds none.

    A row has a box in pixels, or in cells and logarithms, then an objectness and class scores, which are
    probabilities. Logits, hidden states and probabilities of a sequence have the same shape, but leave 0 to 1 behind
    the fourth column, or in none.
    """
    if output.ndim != 3 or output.shape[0] != 1 or output.shape[1] == 0 or output.shape[2] <= _BOX + 1:
        return None
    rows: Floats = output[0].astype(np.float64)
    boxes, scores = rows[:, :_BOX], rows[:, _BOX:]
    return rows if _are_probabilities(scores) and not _are_probabilities(boxes) else None


def _are_probabilities(values: Floats) -> bool:
    return bool(values.min() >= -_SLACK and values.max() <= 1 + _SLACK)


def rank(scores: Floats, truth: int) -> int:
    """Position of class `truth` when classes are sorted by falling score, equal scores by class number."""
    own = scores[truth]
    return int((scores > own).sum() + (scores[:truth] == own).sum())
