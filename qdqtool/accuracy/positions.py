"""Measures outputs with a class at each position, without labels: segmentation maps, and text lines from OCR.

The float model says what is right. A segmentation is judged by the share of pixels that keep their class; a map of one object,
by the overlap of both objects (intersection over union). A line of text
is read as greedy CTC decoding reads it: repeated classes count once, and the blank class is dropped. It is judged by its
characters: 1 - edit distance / length of the longer text (1 - CER, if the float model's text is the truth).

Probabilities of a softmax show the axis of the classes by their sums. An image, a depth map or a backbone's features may have
the shape of logits, so logits are read only if `compare.task` says what they are (`segment`, `text`, `tokens`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.tokens import used_positions
from qdqtool.core.comparison import CHARACTERS, MASKS, PIXELS, POSITIONS
from qdqtool.core.protocols import Sample

TASKS: Final = {"segment": PIXELS, "text": CHARACTERS, "tokens": POSITIONS}
"""Values of `compare.task` that say what logits are, each with its metric."""
_SUM: Final = 0.02
"""Largest difference from 1 of the sum of probabilities, as a coarse output scale leaves it."""
_BLANK: Final = 0.2
"""Least share of the positions at which CTC reads no character; PP-OCR reads none at half of them."""
_FEWEST: Final = 11
"""Fewest classes of a line of text: ten digits and the blank."""
_MAP: Final = 4
"""Axes of a map of class scores: batch, classes, height, width."""


def judge_positions(
    reference: NDArray[Any], candidate: NDArray[Any], sample: Sample, task: str = ""
) -> tuple[str, float] | None:
    """Return the metric, and the candidate's share (0 to 1), for the output of one sample.

    Args:
        reference: the float model's output, of one sample: probabilities, logits, or the class numbers of a map.
        candidate: the quantized model's output.
        sample: its inputs; a line of text is read from a picture or from sound, never from token numbers.
        task: of `TASKS` if the output is known to be that; then it may be logits.

    Returns:
        None if the outputs differ in shape, or it is not certain that they are classes at positions.
    """
    if reference.shape != candidate.shape or reference.ndim < _MAP - 1:
        return None
    if reference.dtype.kind in "iub":
        # class numbers of a map (batch, height, width), or with an axis of length 1 for the channel
        is_map = min(reference.shape[-2:]) > 1
        return (PIXELS, float((reference == candidate).mean())) if is_map and task != "text" else None
    if task == "segment" and reference.ndim == _MAP and 1 in (reference.shape[1], reference.shape[3]):
        return MASKS, _compare_masks(reference, candidate)
    axis = _class_axis(reference, task)
    if axis is None:
        return None
    left, right = (side.argmax(axis=axis) for side in (reference, candidate))
    blank = None
    if (
        task != "tokens"
        and left.size == max(left.shape)
        and any(feed.dtype.kind == "f" for feed in sample.feeds.values())
    ):
        blank = _find_blank(left, reference.shape[axis], task)
    if blank is not None:
        return CHARACTERS, _compare_texts(*(_read_text(side.ravel(), blank) for side in (left, right)))
    if task == "text":
        return None
    if reference.ndim == _MAP:
        return PIXELS, float((left == right).mean())
    used = used_positions(sample.feeds, left.shape)
    return (POSITIONS, float((left == right)[used].mean())) if used.any() else None


def _compare_masks(reference: NDArray[Any], candidate: NDArray[Any]) -> float:
    """Return the intersection over union of an object in two masks; 1 if neither mask has an object."""
    is_probability = reference.min() >= -_SUM and reference.max() <= 1 + _SUM
    left, right = (side > (1 / 2 if is_probability else 0) for side in (reference, candidate))
    union = int((left | right).sum())
    return float((left & right).sum()) / union if union else 1.0


def _class_axis(values: NDArray[Any], task: str) -> int | None:
    """Return the axis along which probabilities sum to 1, also for logarithms of probabilities."""
    if not values.size or values.dtype.kind != "f" or not np.isfinite(values).all():
        return None
    wide: NDArray[np.float32] = values.astype(np.float32)
    if wide.min() < -_SUM:
        wide = np.exp(wide) if wide.max() <= _SUM else np.full_like(wide, np.nan)
    axes = [
        axis
        for axis in range(1 if values.shape[0] == 1 else 0, values.ndim)
        if 1 < values.shape[axis] < values.size and np.abs(wide.sum(axis=axis) - 1).max() <= _SUM
    ]
    if len(axes) == 1:
        return axes[0]
    if task == "segment" and values.ndim == _MAP:
        return 1
    return values.ndim - 1 if task in {"text", "tokens"} else None


def _find_blank(classes: NDArray[np.intp], count: int, task: str) -> int | None:
    """Return the blank class of CTC: the first or last class, if it is often the best; else None."""
    if count < _FEWEST and task != "text":
        return None
    shares = {blank: float((classes == blank).mean()) for blank in (0, count - 1)}
    blank = max(shares, key=lambda number: shares[number])
    return blank if shares[blank] >= _BLANK or task == "text" else None


def _read_text(classes: NDArray[np.intp], blank: int) -> NDArray[np.intp]:
    """Return the characters of a text line by greedy CTC decoding."""
    changes = np.concatenate([[True], classes[1:] != classes[:-1]])
    text: NDArray[np.intp] = classes[changes & (classes != blank)]
    return text


def _compare_texts(reference: NDArray[np.intp], candidate: NDArray[np.intp]) -> float:
    """Return the similarity of two texts: 1 - edit distance / length of the longer one; 1 if both are empty."""
    longest = max(len(reference), len(candidate))
    if not longest:
        return 1.0
    steps = np.arange(len(candidate) + 1)
    row = steps.copy()
    for number, character in enumerate(reference, start=1):
        best = np.minimum(row[1:] + 1, row[:-1] + (candidate != character))
        # insertions: a running minimum; each step costs 1
        row = np.minimum.accumulate(np.concatenate([[number], best]) - steps) + steps
    return 1.0 - float(row[-1]) / longest
