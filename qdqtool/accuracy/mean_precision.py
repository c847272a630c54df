"""Mean average precision of a detector, float and quantized, on pictures with labelled boxes.

As COCO defines it: boxes with a score of 0.001 or more, a box for each class that reaches it, non-maximum suppression
at 0.7, the 300 best boxes of a picture, precision at 101 recalls, and the mean over classes. The interval of the
difference is estimated by leaving out one of up to 20 groups of pictures at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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

Truth = NDArray[np.float64]
"""Labelled boxes of one picture, one row per box: class, left, top, right, bottom in pixels of the input."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Found:
    """The boxes that one model finds in one picture, best first.

    Attributes:
        scores: (boxes,).
        classes: (boxes,).
        hits: (boxes, 10), whether the box has a partner at each overlap.
    """

    scores: NDArray[np.float32]
    classes: NDArray[np.int32]
    hits: NDArray[np.bool_]


class MeanPrecision:
    """Collects the boxes of both sides, picture by picture; some kilobytes for each."""

    def __init__(self) -> None:
        self._sides: tuple[list[_Found], list[_Found]] = ([], [])
        self._truths: list[NDArray[np.int32]] = []

    def record(self, boxes: tuple[RawBoxes, RawBoxes], layout: BoxLayout, truth: Truth) -> None:
        """Add one picture. Boxes that fit no grid count as none."""
        for side, raw in zip(self._sides, boxes, strict=True):
            side.append(_find_hits(raw, layout, truth))
        self._truths.append(truth[:, 0].astype(np.int32))

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
            # equal boxes in all pictures are no proof of equal boxes in others
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
            for place, name in enumerate((MAP50, MAP))
        )

    def _precision(self, side: Sequence[_Found], numbers: NDArray[np.int64]) -> tuple[float, float]:
        """Return both figures in percent over the pictures with these numbers."""
        scores = np.concatenate([side[number].scores for number in numbers])
        classes = np.concatenate([side[number].classes for number in numbers])
        hits = np.concatenate([side[number].hits for number in numbers])
        labelled = np.concatenate([self._truths[number] for number in numbers])
        order = np.argsort(-scores, kind="stable")
        classes, hits = classes[order], hits[order]
        kinds, counts = np.unique(labelled, return_counts=True)
        rows = [_average(hits[classes == kind], count) for kind, count in zip(kinds, counts, strict=True)]
        mean = np.mean(rows, axis=0) if rows else np.zeros(len(_OVERLAPS))
        return 100 * float(mean[0]), 100 * float(mean.mean())


def _average(hits: NDArray[np.bool_], labelled: int) -> Floats:
    """Return the average precision of one class at each overlap; `hits` are in the order of the scores."""
    right = np.cumsum(hits, axis=0)
    recall = right / labelled
    precision = right / np.arange(1, len(hits) + 1)[:, np.newaxis]
    best = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
    result = np.zeros(len(_OVERLAPS))
    for column in range(len(_OVERLAPS)):
        places = np.searchsorted(recall[:, column], _RECALLS, side="left")
        reached = places[places < len(hits)]
        result[column] = best[reached, column].sum() / len(_RECALLS)
    return result


def _find_hits(raw: RawBoxes, layout: BoxLayout, truth: Truth) -> _Found:
    rows, kinds = np.nonzero(raw.scores >= _LEAST_SCORE)
    scores = raw.scores[rows, kinds]
    order = np.argsort(-scores, kind="stable")[:_CANDIDATES]
    corners = corners_of(raw, layout)
    if corners is None:
        order = order[:0]
        corners = np.zeros((0, 4))
    boxes, kinds, scores = corners[rows[order]], kinds[order], scores[order]
    kept = _suppress_overlaps(boxes, kinds)
    return _Found(
        scores=scores[kept].astype(np.float32),
        classes=kinds[kept].astype(np.int32),
        hits=_hits(boxes[kept], kinds[kept], truth),
    )


def _suppress_overlaps(boxes: Floats, kinds: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the numbers of the boxes that remain, best first."""
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


def _hits(boxes: Floats, kinds: NDArray[np.intp], truth: Truth) -> NDArray[np.bool_]:
    """Return which boxes have a partner among the labelled ones, at each overlap; each label is used once, best first."""
    hits = np.zeros((len(boxes), len(_OVERLAPS)), dtype=bool)
    free = np.ones((len(truth), len(_OVERLAPS)), dtype=bool)
    for number, (box, kind) in enumerate(zip(boxes, kinds, strict=True)):
        of_kind = np.flatnonzero(truth[:, 0] == kind)
        if not len(of_kind):
            continue
        shares = shared_area(box, truth[of_kind, 1:])
        for column, least in enumerate(_OVERLAPS):
            possible = np.where(free[of_kind, column], shares, -1.0)
            best = int(possible.argmax())
            if possible[best] >= least:
                free[of_kind[best], column] = False
                hits[number, column] = True
    return hits
