"""Judges the masks and the keypoints of detections, with those of the float model as the truth.

Boxes of both models are matched as for the agreement of boxes. A pair of masks counts as much as the masks overlap
(intersection over union), and a pair of keypoints counts as much as their object keypoint similarity (OKS of COCO). A box
without a partner counts 0. So the figure is at most the agreement of the boxes, and equal to it if all masks or keypoints are
equal.

Read are exports of Ultralytics: the values of a detection after its classes are the coefficients of its mask, if another output
(1, coefficients, height, width) holds the prototypes of masks. Otherwise the values are keypoints: x, y in pixels, and the
visibility if each third value is a probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.detections import (
    BoxLayout,
    RawBoxes,
    are_probabilities,
    detections,
    extra_of,
    match_boxes,
)
from qdqtool.accuracy.metric import Floats
from qdqtool.core.comparison import KEYPOINTS, MASKS
from qdqtool.core.protocols import Sample

_COLOURS: Final = (1, 3, 4)
_PERSON: Final = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000
"""Tolerance of each keypoint of a person in COCO, from nose to ankles."""
_FILLED: Final = 0.53
"""Share of a box that its object fills, as `yolo val` assumes it."""
_MAP: Final = 4
"""Axes of the prototypes of masks."""


def judge_instances(
    outputs: tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]],
    boxes: tuple[RawBoxes, RawBoxes],
    layout: BoxLayout,
    extra: int,
    sample: Sample,
) -> tuple[str, float] | None:
    """Return the metric (`MASKS` or `KEYPOINTS`) and its value, 0 to 1, for one picture.

    Args:
        outputs: all outputs of the float and the quantized model; the first one holds the detections, with their last `extra` values.
        boxes: the boxes of both.
        layout: of the first output without these values.
        extra: values of each detection after its box and its classes.
        sample: its inputs; the picture says how large a pixel of a mask is.

    Returns:
        None if neither side has a box, if the boxes cannot be decoded, or if the picture is not known.
    """
    left, right = (detections(raw, layout) for raw in boxes)
    if left is None or right is None or not len(left.classes) + len(right.classes):
        return None
    first = next(iter(outputs[0]))
    values = [
        extra_of(side[first], extra)[chosen.rows if raw.rows is None else raw.rows[chosen.rows]]
        for side, raw, chosen in zip(outputs, boxes, (left, right), strict=True)
    ]
    pairs = match_boxes(left, right)
    name = next((name for name, output in outputs[0].items() if _is_prototype(output, extra)), None)
    if name is None:
        metric, qualities = (
            KEYPOINTS,
            [
                _compare_keypoints(values[0][row], values[1][partner], left.corners[row])
                for row, partner in pairs
            ],
        )
    else:
        scale = _scale(sample, outputs[0][name])
        if scale is None:
            return None
        prototypes = [side[name].reshape(side[name].shape[1:]).astype(np.float32) for side in outputs]
        metric, qualities = (
            MASKS,
            [
                _overlap(
                    _mask(values[0][row], prototypes[0], left.corners[row] * scale),
                    _mask(values[1][partner], prototypes[1], right.corners[partner] * scale),
                )
                for row, partner in pairs
            ],
        )
    return metric, 2 * float(np.sum(qualities)) / (len(left.classes) + len(right.classes))


def _is_prototype(output: NDArray[Any], extra: int) -> bool:
    return output.ndim == _MAP and output.shape[:2] == (1, extra)


def _scale(sample: Sample, prototypes: NDArray[Any]) -> Floats | None:
    """Return the factors from pixels of the picture to pixels of a mask, for left, top, right and bottom."""
    for feed in sample.feeds.values():
        if feed.ndim == _MAP:
            height, width = feed.shape[2:] if feed.shape[1] in _COLOURS else feed.shape[1:3]
            return np.array([prototypes.shape[3] / width, prototypes.shape[2] / height] * 2)
    return None


def _mask(coefficients: Floats, prototypes: NDArray[np.float32], corners: Floats) -> NDArray[np.bool_]:
    """Return the mask (height, width), cut off at the box; `corners` are in its pixels."""
    height, width = prototypes.shape[1:]
    mask: NDArray[np.bool_] = np.tensordot(coefficients.astype(np.float32), prototypes, axes=1) > 0
    columns, rows = np.arange(width), np.arange(height)[:, np.newaxis]
    left, top, right, bottom = corners
    mask &= (columns >= left) & (columns < right) & (rows >= top) & (rows < bottom)
    return mask


def _overlap(left: NDArray[np.bool_], right: NDArray[np.bool_]) -> float:
    union = int((left | right).sum())
    return 1.0 if not union else float((left & right).sum()) / union


def _compare_keypoints(reference: Floats, candidate: Floats, corners: Floats) -> float:
    """Return the object keypoint similarity; keypoints that the float model does not see do not count."""
    depth = 3 if not len(reference) % 3 and are_probabilities(reference[2::3]) else 2
    if len(reference) % depth:
        return 1.0
    points, moved = reference.reshape(-1, depth), candidate.reshape(-1, depth)
    tolerance = _PERSON if len(points) == len(_PERSON) else np.full(len(points), 1 / len(points))
    area = max(_FILLED * float((corners[2] - corners[0]) * (corners[3] - corners[1])), 1.0)
    distances = ((points[:, :2] - moved[:, :2]) ** 2).sum(axis=1)
    similarity = np.exp(-distances / (2 * tolerance) ** 2 / area / 2)
    visible = points[:, 2] > 1 / 2 if depth > 2 else np.ones(len(points), bool)
    return float(similarity[visible].mean() if visible.any() else similarity.mean())
