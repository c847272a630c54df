"""From a detector's raw output to boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.metric import Floats
from qdqtool.accuracy.scores import box_rows

# Centre, width and height; objectness and class scores follow.
_BOX = 4
# The score from which YOLO's own demos show a box, and the overlap that PASCAL VOC takes for the same object.
_CONFIDENT = 0.25
_OVERLAP = 0.5
# The three feature maps of the YOLO family.
_STRIDES = (8, 16, 32)
_MOST = 300
"""Boxes of one image that are looked at."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Detections:
    """Confident boxes of one image after non-maximum suppression, best first.

    Attributes:
        corners: (boxes, 4): left, top, right, bottom.
        classes: (boxes,) class of each.
    """

    corners: Floats
    classes: NDArray[np.intp]


def detections(output: Floats) -> Detections | None:
    """Boxes in rows of centre x, centre y, width, height, objectness and class scores (1 x boxes x (5 + classes)).

    Negative widths mean that a YOLOX head was exported without its decoding: offsets in grid cells and logarithms of
    sizes, for strides 8, 16 and 32 over a square image; they are decoded here. None where the output holds no boxes.
    """
    rows = box_rows(output)
    if rows is None:
        return None
    boxes = rows[:, :_BOX]
    if (boxes[:, 2:] < 0).any():
        grid = _grid(len(rows))
        if grid is None:
            return None
        cells, strides = grid
        boxes = np.concatenate(
            [(boxes[:, :2] + cells) * strides, np.exp(np.minimum(boxes[:, 2:], 20)) * strides], axis=1
        )
    scores = rows[:, _BOX : _BOX + 1] * rows[:, _BOX + 1 :]
    best = scores.max(axis=1)
    order = np.argsort(-best, kind="stable")[:_MOST]
    order = order[best[order] >= _CONFIDENT]
    half = boxes[order, 2:] / 2
    corners = np.concatenate([boxes[order, :2] - half, boxes[order, :2] + half], axis=1)
    return _suppressed(corners, scores[order].argmax(axis=1))


def matched(reference: Detections, candidate: Detections) -> int:
    """How many boxes have a partner of the same class that overlaps by half; each box is taken once, best first."""
    free = np.ones(len(candidate.classes), dtype=bool)
    hits = 0
    for corners, kind in zip(reference.corners, reference.classes, strict=True):
        overlap = np.where(free & (candidate.classes == kind), _overlap(corners, candidate.corners), 0.0)
        if overlap.size and overlap.max() >= _OVERLAP:
            free[int(overlap.argmax())] = False
            hits += 1
    return hits


def _suppressed(corners: Floats, classes: NDArray[np.intp]) -> Detections:
    kept: list[int] = []
    for number in range(len(classes)):
        rivals = [other for other in kept if classes[other] == classes[number]]
        if not rivals or _overlap(corners[number], corners[rivals]).max() < _OVERLAP:
            kept.append(number)
    return Detections(corners=corners[kept], classes=classes[kept])


def _overlap(box: Floats, others: Floats) -> Floats:
    """Intersection over union of one box with many."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.maximum(high - low, 0).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - common
    shares: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return shares


def _grid(count: int) -> tuple[Floats, Floats] | None:
    """Cell coordinates and stride of every row, for a square image; None where the count fits none."""
    first, middle, last = _STRIDES
    side = next(
        (
            side
            for side in range(last, 4096, last)
            if sum((side // stride) ** 2 for stride in _STRIDES) == count
        ),
        None,
    )
    if side is None:
        return None
    cells, strides = [], []
    for stride in (first, middle, last):
        y, x = np.mgrid[: side // stride, : side // stride]
        cells.append(np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float64))
        strides.append(np.full((x.size, 1), float(stride)))
    return np.concatenate(cells), np.concatenate(strides)
