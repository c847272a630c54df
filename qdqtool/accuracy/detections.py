"""Turns a detector's raw output into boxes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.layouts import CONFIDENT, BoxLayout, RawBoxes
from qdqtool.accuracy.metric import Floats

# The overlap that PASCAL VOC takes for the same object.
_OVERLAP = 0.5
# The three feature maps of the YOLO family.
_STRIDES = (8, 16, 32)
_MOST = 300
"""Most boxes of one image that are used."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Detections:
    """Return the confident boxes of one image after non-maximum suppression, best first.

    Attributes:
        corners: (boxes, 4): left, top, right, bottom.
        classes: (boxes,) class of each.
    """

    corners: Floats
    classes: NDArray[np.intp]


def agreement(reference: RawBoxes, candidate: RawBoxes, layout: BoxLayout) -> tuple[int, int] | None:
    """Return how many boxes of both sides have a partner, and how many boxes there are; None if they cannot be decoded."""
    left, right = detections(reference, layout), detections(candidate, layout)
    if left is None or right is None:
        return None
    return 2 * matched(left, right), len(left.classes) + len(right.classes)


def detections(found: RawBoxes, layout: BoxLayout) -> Detections | None:
    """Return the confident boxes of one image as corners.

    What a YOLOX head gives without its decoding is decoded here, for strides 8, 16 and 32 over a square image. None if
    the boxes fit no such grid.
    """
    boxes, scores = found.boxes, found.scores
    if layout is BoxLayout.OFFSETS:
        grid = _grid(len(boxes))
        if grid is None:
            return None
        cells, strides = grid
        boxes = np.concatenate(
            [(boxes[:, :2] + cells) * strides, np.exp(np.minimum(boxes[:, 2:], 20)) * strides], axis=1
        )
    best = scores.max(axis=1)
    order = np.argsort(-best, kind="stable")[:_MOST]
    order = order[best[order] >= CONFIDENT]
    corners, classes = boxes[order], scores[order].argmax(axis=1)
    if not layout.is_final:
        half = corners[:, 2:] / 2
        corners = np.concatenate([corners[:, :2] - half, corners[:, :2] + half], axis=1)
    return _suppressed(corners, classes)


def matched(reference: Detections, candidate: Detections) -> int:
    """Count the boxes with a partner of the same class that overlaps by half. Each box is used once, best first."""
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
    """Return the intersection over union of one box with many."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.maximum(high - low, 0).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - common
    shares: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return shares


def _grid(count: int) -> tuple[Floats, Floats] | None:
    """Return cell coordinates and stride of every row, for a square image; None if no grid has this count."""
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
