"""Mean average precision of a detector, float and quantized, on pictures with labelled boxes, masks or keypoints.

As COCO defines it: boxes with a score of 0.001 or more, a box for each class that reaches it, non-maximum suppression
at 0.7, the 300 best boxes of a picture, precision at 101 recalls, and the mean over classes. A box
that fits only a label to ignore is neither right nor wrong. The interval of the
difference is estimated by leaving out one of up to 20 groups of pictures at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.detections import BoxLayout, RawBoxes, corners_of, shared_area
from qdqtool.accuracy.metric import Floats
from qdqtool.core.comparison import MAP, MAP50, TaskAccuracy
from qdqtool.core.evidence import student_quantile

_LEAST_SCORE: Final = 0.001
"""Score from which a box counts, as in `yolo val`."""
_SUPPRESSED: Final = 0.7
"""Overlap from which a box is suppressed, as in `yolo val`."""
_CANDIDATES: Final = 3000
"""Most boxes of one picture before suppression."""
_MOST: Final = 300
"""Most boxes of one picture after suppression, as in `yolo val`."""
_OVERLAPS: Final = np.linspace(0.5, 0.95, 10)
_RECALLS: Final = np.linspace(0, 1, 101) - 1e-9
"""Recalls at which precision is read; less the error of a division."""
_GROUPS: Final = 20
"""Most groups of the jackknife: more cost time, and the interval hardly changes."""
_FEWEST: Final = 8
"""Pictures below which no interval is estimated."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Kept:
    """The boxes of one picture after non-maximum suppression, best first.

    Attributes:
        rows: (boxes,), number of each among the raw boxes.
        corners: (boxes, 4), left, top, right, bottom in pixels of the input.
        scores: (boxes,).
        classes: (boxes,).
    """

    rows: NDArray[np.intp]
    corners: Floats
    scores: NDArray[np.float32]
    classes: NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Found:
    """The boxes that one model detects in one picture, best first.

    Attributes:
        scores: (boxes,).
        classes: (boxes,).
        outcomes: (boxes, 10), `_RIGHT`, `_WRONG` or `_NEITHER` at each overlap.
    """

    scores: NDArray[np.float32]
    classes: NDArray[np.int32]
    outcomes: NDArray[np.int8]


_RIGHT, _WRONG, _NEITHER = 1, 0, -1


class MeanPrecision:
    """Mean average precision of the float and the quantized detector, from boxes picture by picture.

    Args:
        names: of the precision at an overlap of 0.5, and of its mean over 0.5 to 0.95.
    """

    def __init__(self, names: tuple[str, str] = (MAP50, MAP)) -> None:
        self._names = names
        self._sides: tuple[list[_Found], list[_Found]] = ([], [])
        self._truths: list[NDArray[np.int32]] = []

    def record(
        self,
        sides: tuple[Kept, Kept],
        overlaps: tuple[Floats, Floats],
        classes: NDArray[Any],
        ignored: NDArray[np.bool_] | None = None,
    ) -> None:
        """Add the detections of one picture to the mean average precision.

        Args:
            sides: boxes of the float and the quantized model.
            overlaps: of the boxes of each side with the labelled objects (boxes, objects), 0 to 1.
            classes: of the labelled objects.
            ignored: objects that need not be found; None: all count.
        """
        if ignored is None:
            ignored = np.zeros(len(classes), bool)
        for side, kept, shares in zip(self._sides, sides, overlaps, strict=True):
            outcomes = _outcomes(np.where(kept.classes[:, np.newaxis] == classes, shares, -1.0), ignored)
            side.append(_Found(scores=kept.scores, classes=kept.classes, outcomes=outcomes))
        self._truths.append(classes[~ignored].astype(np.int32))

    def results(self) -> tuple[TaskAccuracy, ...]:
        """Return mAP at an overlap of 0.5, and its mean over 0.5 to 0.95, in percent; () without labelled boxes."""
        count = len(self._truths)
        if not any(len(truth) for truth in self._truths):
            return ()
        every = np.arange(count)
        whole = [self._precision(side, every) for side in self._sides]
        margins = None
        if count >= _FEWEST:
            groups = min(count, _GROUPS)
            left = [every[every % groups != group] for group in range(groups)]
            shifts = np.array([self._precision(self._sides[1], some) for some in left])
            shifts -= np.array([self._precision(self._sides[0], some) for some in left])
            spread = np.sqrt((groups - 1) / groups * ((shifts - shifts.mean(axis=0)) ** 2).sum(axis=0))
            # equal boxes in these images do not prove equal boxes in others
            unseen = 100 * (1 - 0.05 ** (1 / count))
            margins = np.where(spread > 0, spread * student_quantile(groups - 1, 0.975), unseen)
        return tuple(
            TaskAccuracy(
                metric=name,
                unit="%",
                reference=float(whole[0][place]),
                candidate=float(whole[1][place]),
                samples=count,
                low=None if margins is None else float(whole[1][place] - whole[0][place] - margins[place]),
                high=None if margins is None else float(whole[1][place] - whole[0][place] + margins[place]),
            )
            for place, name in enumerate(self._names)
        )

    def _precision(self, side: Sequence[_Found], numbers: NDArray[np.int64]) -> tuple[float, float]:
        """Return both mAP figures in percent over the pictures with these numbers."""
        scores = np.concatenate([side[number].scores for number in numbers])
        classes = np.concatenate([side[number].classes for number in numbers])
        outcomes = np.concatenate([side[number].outcomes for number in numbers])
        labelled = np.concatenate([self._truths[number] for number in numbers])
        order = np.argsort(-scores, kind="stable")
        classes, outcomes = classes[order], outcomes[order]
        kinds, counts = np.unique(labelled, return_counts=True)
        rows = [_average(outcomes[classes == kind], count) for kind, count in zip(kinds, counts, strict=True)]
        mean = np.mean(rows, axis=0) if rows else np.zeros(len(_OVERLAPS))
        return 100 * float(mean[0]), 100 * float(mean.mean())


def _average(outcomes: NDArray[np.int8], labelled: int) -> Floats:
    """Return the average precision of one class at each overlap threshold (IoU).

    The rows of `outcomes` are detections in the order of scores.
    """
    right = np.cumsum(outcomes == _RIGHT, axis=0)
    recall = right / labelled
    precision = right / np.maximum(np.cumsum(outcomes != _NEITHER, axis=0), 1)
    best = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    result = np.zeros(len(_OVERLAPS))
    for column in range(len(_OVERLAPS)):
        places = np.searchsorted(recall[:, column], _RECALLS, side="left")
        reached = places[places < len(outcomes)]
        result[column] = best[reached, column].sum() / len(_RECALLS)
    return result


def keep_boxes(raw: RawBoxes, layout: BoxLayout) -> Kept:
    """Return the boxes of a picture after non-maximum suppression; none if the boxes fit no detection grid."""
    rows, kinds = np.nonzero(raw.scores >= _LEAST_SCORE)
    scores = raw.scores[rows, kinds]
    order = np.argsort(-scores, kind="stable")[:_CANDIDATES]
    corners = corners_of(raw, layout)
    if corners is None:
        order = order[:0]
        corners = np.zeros((0, 4))
    rows, kinds, scores = rows[order], kinds[order], scores[order]
    boxes = corners[rows]
    kept = _suppress_overlaps(boxes, kinds)
    return Kept(
        rows=rows[kept],
        corners=boxes[kept],
        scores=scores[kept].astype(np.float32),
        classes=kinds[kept].astype(np.int32),
    )


def box_overlaps(kept: Kept, truth: Floats) -> Floats:
    """Return the intersection over union of all boxes with all labelled ones (objects, 4): (boxes, objects)."""
    shares = [shared_area(box, kept.corners) for box in truth]
    return np.stack(shares, axis=1) if shares else np.zeros((len(kept.corners), 0))


def _suppress_overlaps(boxes: Floats, kinds: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the numbers of the boxes that non-maximum suppression keeps, best first."""
    free = np.ones(len(boxes), dtype=bool)
    kept: list[int] = []
    for number in range(len(boxes)):
        if not free[number]:
            continue
        kept.append(number)
        if len(kept) == _MOST:
            break
        rivals = np.flatnonzero(free[number + 1 :] & (kinds[number + 1 :] == kinds[number])) + number + 1
        free[rivals[shared_area(boxes[number], boxes[rivals]) > _SUPPRESSED]] = False
    return np.array(kept, dtype=np.intp)


def _outcomes(overlaps: Floats, ignored: NDArray[np.bool_]) -> NDArray[np.int8]:
    """Return whether boxes match a label at each overlap threshold (boxes, 10). A label matches once.

    Args:
        overlaps: (boxes, objects), negative for different classes.
        ignored: (objects,).
    """
    outcomes = np.full((len(overlaps), len(_OVERLAPS)), _WRONG, np.int8)
    if not overlaps.shape[1]:
        return outcomes
    free = np.ones((len(_OVERLAPS), overlaps.shape[1]), dtype=bool)
    columns = np.arange(len(_OVERLAPS))
    for number, shares in enumerate(overlaps):
        for outcome, objects in ((_RIGHT, ~ignored), (_NEITHER, ignored)):
            possible = np.where(free & objects, shares, -1.0)
            best = possible.argmax(axis=1)
            is_match = (possible[columns, best] >= _OVERLAPS) & (outcomes[number] == _WRONG)
            outcomes[number, is_match] = outcome
            free[columns[is_match], best[is_match]] = False
    return outcomes
