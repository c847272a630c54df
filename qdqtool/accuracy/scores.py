"""Turns a model output into the scores of its classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.box_outputs import box_outputs, boxes_of_rows
from qdqtool.accuracy.layouts import CONFIDENT, BoxLayout, NoScores, RawBoxes, candidates, layout_of
from qdqtool.accuracy.metric import Floats


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ScorePair:
    """One sample's scores on both sides, one per class.

    Attributes:
        reference, candidate: vectors of equal length.
        layout: of the boxes that they were taken from; None if the output is the scores themselves.
        boxes: these boxes on both sides.
    """

    reference: Floats
    candidate: Floats
    layout: BoxLayout | None = None
    boxes: tuple[RawBoxes, RawBoxes] | None = None

    @property
    def named(self) -> int | None:
        """The class that the reference names.

        None if it has no box with a sufficient score, because its best class is then chance.
        """
        if self.layout is not None and self.reference.max() < CONFIDENT:
            return None
        return int(self.reference.argmax())

    @property
    def shown(self) -> Floats:
        """The candidate's scores, for comparison with `named`; if none of its boxes is left, that class ranks last.

        The best of boxes that nobody would see may be of any class, and often is of the right one.
        """
        if self.layout is None or self.named is None or self.candidate.max() >= CONFIDENT / 2:
            return self.candidate
        lost = self.candidate.copy()
        lost[self.named] = -1.0
        return lost


def class_rows(output: Floats) -> Floats:
    """Return the output as rows of class scores (rows x classes): the last axis, or axis 1 of N x C x 1 x 1."""
    if output.ndim == 4 and output.shape[2:] == (1, 1):
        return output[:, :, 0, 0]
    return output.reshape(-1, output.shape[-1]) if output.ndim else output.reshape(1, 1)


def class_scores(output: NDArray[Any]) -> Floats | None:
    """Return one sample's scores, one per class; None if the output is not the scores of one sample.

    Understood are: a vector of scores with any number of axes of length 1 around it (a logit or probability per
    class); boxes in one of the layouts of `layouts`, where a class scores as much as its best box does, class score times
    objectness where there is one. Final detections name no more classes than were found, and are not understood.
    """
    if _is_vector(output):
        return _vector(output)
    layout = layout_of(output)
    if isinstance(layout, NoScores) or layout.is_final:
        return None
    return _best(candidates(output, layout))


def read_pair(
    reference: Mapping[str, NDArray[Any]], candidate: Mapping[str, NDArray[Any]], classes: int = 0
) -> ScorePair | NoScores:
    """Return one sample's scores on both sides, from all outputs of a network, with the same names on both sides.

    A detector's boxes may be in several outputs (`box_outputs`). Otherwise the first output is read, as `score_pair` does.
    """
    found = box_outputs(reference) if len(reference) > 1 else None
    if found is None:
        first = next(iter(reference))
        boxes = boxes_of_rows(first, reference)
        if boxes is not None:
            return NoScores(why=f"has one value per row of {boxes!r}, but their meaning is unknown")
        return score_pair(reference[first], candidate[first], classes)
    return _boxed(found.layout, (found.read(reference), found.read(candidate)), classes)


def score_pair(reference: NDArray[Any], candidate: NDArray[Any], classes: int = 0) -> ScorePair | NoScores:
    """Return one sample's scores on both sides, like `class_scores`; the reason if the reference is not understood.

    The reference says how both are read. Final detections become scores of at least `classes` classes and of one more
    after them, "nothing", which is the best where no box is left.
    """
    if _is_vector(reference):
        return ScorePair(reference=_vector(reference), candidate=_vector(candidate))
    layout = layout_of(reference)
    if isinstance(layout, NoScores):
        return layout
    return _boxed(layout, (candidates(reference, layout), candidates(candidate, layout)), classes)


def _boxed(layout: BoxLayout, sides: tuple[RawBoxes, RawBoxes], classes: int) -> ScorePair:
    if layout.is_final:
        count = max(classes, *(side.scores.shape[1] for side in sides))
        left, right = (_best_scores(side, count) for side in sides)
    else:
        left, right = map(_best, sides)
    return ScorePair(reference=left, candidate=right, layout=layout, boxes=sides)


def _is_vector(output: NDArray[Any]) -> bool:
    return max(output.shape, default=1) == output.size


def _vector(output: NDArray[Any]) -> Floats:
    return output.reshape(-1).astype(np.float64)


def _best(boxes: RawBoxes) -> Floats:
    best: Floats = boxes.scores.max(axis=0)
    return best


def _best_scores(boxes: RawBoxes, classes: int) -> Floats:
    """Return the best score of each class, below zero if no box has it, followed by zero for "no class"."""
    best = np.full(classes + 1, -1.0)
    best[classes] = 0.0
    if len(boxes.scores):
        seen = boxes.scores.max(axis=0)
        best[: len(seen)] = np.where(seen > 0, seen, -1.0)
    return best


def rank(scores: Floats, truth: int) -> int:
    """Return the rank of class `truth` by falling score; equal scores rank by class number."""
    own = scores[truth]
    return int((scores > own).sum() + (scores[:truth] == own).sum())
