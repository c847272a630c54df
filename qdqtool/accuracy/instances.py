"""Measures masks and keypoints of detections against those of the float model, or against labels.

Against the float model, boxes of both models are matched as for the agreement of boxes. A pair of masks counts as much as the masks overlap
(intersection over union), and a pair of keypoints counts as much as their object keypoint similarity (OKS of COCO). A box
without a partner counts 0. So the figure is at most the agreement of the boxes, and equal to it if all masks or keypoints are
equal.

Against labels, mean average precision takes the overlap of masks, or OKS, where that of boxes takes the overlap of boxes. A pixel
of the prototypes belongs to a labelled outline if its centre is inside. Objects without a visible keypoint are ignored, as
COCO does it.

Read are exports of Ultralytics: the values of a detection after its classes are the coefficients of its mask, if another output
(1, coefficients, height, width) holds the prototypes of masks. Otherwise the values are keypoints: x, y in pixels, and the
visibility if each third value is a probability.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.detections import (
    BoxLayout,
    RawBoxes,
    are_probabilities,
    detections,
    extra_of,
    layout_of,
    match_boxes,
    without_extra,
)
from qdqtool.accuracy.mean_precision import Kept
from qdqtool.accuracy.metric import Floats
from qdqtool.core.comparison import KEYPOINT_MAPS, KEYPOINTS, MASK_MAPS, MASKS
from qdqtool.core.protocols import Sample

_COLOURS: Final = (1, 3, 4)
_PERSON: Final = np.array([26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]) / 1000
"""Tolerance of each keypoint of a person in COCO, from nose to ankles."""
_FILLED: Final = 0.53
"""Share of a box that its object fills, as `yolo val` assumes it."""
_MAP: Final = 4
"""Axes of the prototypes of masks."""
_FLAT: Final = 2
"""Values of a point: x and y."""
_DEEP: Final = 3
"""Values of a keypoint with its visibility."""


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
    values = [
        _values(side, raw, chosen.rows, extra)
        for side, raw, chosen in zip(outputs, boxes, (left, right), strict=True)
    ]
    pairs = match_boxes(left, right)
    name = _prototypes(outputs[0], extra)
    if name is None:
        metric = KEYPOINTS
        qualities = [
            _compare_keypoints(values[0][row], values[1][partner], left.corners[row])
            for row, partner in pairs
        ]
    else:
        scale = _scale(sample, outputs[0][name])
        if scale is None:
            return None
        metric = MASKS
        masks = [
            _masks(side[name], rows, chosen.corners * scale)
            for side, rows, chosen in zip(outputs, values, (left, right), strict=True)
        ]
        qualities = [_overlap(masks[0][row], masks[1][partner]) for row, partner in pairs]
    return metric, 2 * float(np.sum(qualities)) / (len(left.classes) + len(right.classes))


def compare_labels(
    outputs: tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]]],
    boxes: tuple[RawBoxes, RawBoxes],
    kept: tuple[Kept, Kept],
    extra: int,
    sample: Sample,
) -> tuple[tuple[str, str], tuple[Floats, Floats], NDArray[np.bool_]] | None:
    """Return metrics, overlaps of boxes with labelled objects (by masks or keypoints), and which objects are ignored.

    Args:
        outputs: all outputs of the float and the quantized model, as `judge_instances` takes them.
        boxes: the boxes of both.
        kept: the boxes of both after non-maximum suppression.
        extra: values of each detection after its box and its classes.
        sample: its inputs and its labelled objects.

    Returns:
        `MASK_MAPS` or `KEYPOINT_MAPS`, overlaps (boxes, objects) of both sides, and a flag for each object; None if the sample has
        no outlines or keypoints, or other ones than the model.
    """
    points = sample.points
    if points is None or sample.boxes is None:
        return None
    values = [
        _values(side, raw, some.rows, extra) for side, raw, some in zip(outputs, boxes, kept, strict=True)
    ]
    name = _prototypes(outputs[0], extra)
    if name is None:
        return _compare_labelled_keypoints(values, points, sample.boxes[:, 1:])
    scale = _scale(sample, outputs[0][name])
    if scale is None or any(outline.shape[1] != _FLAT for outline in points):
        return None
    area = outputs[0][name].shape[2:]
    truth = [fill_outline(outline * scale[:_FLAT], area) for outline in points]
    sides = [
        _overlaps(_masks(side[name], rows, some.corners * scale), np.array(truth).reshape(-1, *area))
        for side, rows, some in zip(outputs, values, kept, strict=True)
    ]
    return MASK_MAPS, (sides[0], sides[1]), np.zeros(len(truth), bool)


def _compare_labelled_keypoints(
    values: Sequence[Floats], points: Sequence[Floats], corners: Floats
) -> tuple[tuple[str, str], tuple[Floats, Floats], NDArray[np.bool_]] | None:
    # the labels say what a value is: a damaged visibility, or no detection, must not leave out the picture
    extra = values[0].shape[1]
    depths = (depth for depth in (_FLAT, _DEEP) if all(len(truth) * depth == extra for truth in points))
    depth = next(depths, None)
    if depth is None or any(truth.shape[1] != _DEEP for truth in points):
        return None
    sides = []
    for rows in values:
        pairs = zip(points, corners, strict=True)
        shares = [
            _similarity(truth, rows.reshape(len(rows), extra // depth, depth), box) for truth, box in pairs
        ]
        sides.append(np.stack(shares, axis=1) if shares else np.zeros((len(rows), 0)))
    ignored = np.array([not truth[:, 2].any() for truth in points], bool)
    return KEYPOINT_MAPS, (sides[0], sides[1]), ignored


def _values(side: Mapping[str, NDArray[Any]], raw: RawBoxes, rows: NDArray[np.intp], extra: int) -> Floats:
    """Return the values after the classes of these boxes, such as mask coefficients: (boxes, extra)."""
    return extra_of(side[next(iter(side))], extra)[rows if raw.rows is None else raw.rows[rows]]


def _prototypes(side: Mapping[str, NDArray[Any]], extra: int) -> str | None:
    """Return the output that holds the prototypes of masks; None if detections have keypoints instead of masks."""
    return next((name for name, output in side.items() if _is_prototype(output, extra)), None)


def mask_columns(detected: NDArray[Any], further: Iterable[NDArray[Any]]) -> int:
    """Return how many mask coefficients follow each detection; 0 if no further output holds as many prototypes."""
    sizes = (
        output.shape[1]
        for output in further
        if output.ndim == _MAP and _is_prototype(output, output.shape[1])
    )
    layouts = ((size, layout_of(without_extra(detected, size))) for size in sizes)
    return next((size for size, layout in layouts if isinstance(layout, BoxLayout)), 0)


def _is_prototype(output: NDArray[Any], extra: int) -> bool:
    return output.ndim == _MAP and output.shape[:2] == (1, extra)


def _scale(sample: Sample, prototypes: NDArray[Any]) -> Floats | None:
    """Return the factors from picture pixels to mask pixels, for left, top, right and bottom of a box."""
    for feed in sample.feeds.values():
        if feed.ndim == _MAP:
            height, width = feed.shape[2:] if feed.shape[1] in _COLOURS else feed.shape[1:3]
            return np.array([prototypes.shape[3] / width, prototypes.shape[2] / height] * 2)
    return None


def _masks(prototypes: NDArray[Any], coefficients: Floats, corners: Floats) -> NDArray[np.bool_]:
    """Return the masks of boxes (boxes, height, width), cut off at the boxes; `corners` are in pixels of masks."""
    height, width = prototypes.shape[2:]
    flat = prototypes.reshape(prototypes.shape[1], -1).astype(np.float32)
    masks: NDArray[np.bool_] = (coefficients.astype(np.float32) @ flat > 0).reshape(-1, height, width)
    left, top, right, bottom = corners.T[..., np.newaxis]
    columns, rows = np.arange(width), np.arange(height)
    masks &= ((columns >= left) & (columns < right))[:, np.newaxis]
    masks &= ((rows >= top) & (rows < bottom))[:, :, np.newaxis]
    return masks


def fill_outline(outline: Floats, area: tuple[int, int]) -> NDArray[np.bool_]:
    """Return the pixels (height, width) whose centres are inside a polygon (points, 2) of x and y in pixels."""
    inside = np.zeros(area, bool)
    rows, columns = np.arange(area[0]) + 1 / 2, np.arange(area[1]) + 1 / 2
    for (x, y), (to_x, to_y) in zip(outline, np.roll(outline, -1, axis=0), strict=True):
        crossed = (y <= rows) != (to_y <= rows)
        # the centres differ, so `to_y - y` is not 0
        places = x + (rows[crossed] - y) * ((to_x - x) / (to_y - y or 1.0))
        inside[crossed] ^= columns > places[:, np.newaxis]
    return inside


def _overlap(left: NDArray[np.bool_], right: NDArray[np.bool_]) -> float:
    """Return the intersection over union of two masks; 1 if both are empty."""
    union = int((left | right).sum())
    return 1.0 if not union else float((left & right).sum()) / union


def _overlaps(masks: NDArray[np.bool_], truth: NDArray[np.bool_]) -> Floats:
    """Return the intersection over union of each mask with each labelled mask: (masks, objects)."""
    size = truth.shape[1] * truth.shape[2]
    left, right = (side.reshape(len(side), size).astype(np.float32) for side in (masks, truth))
    common = (left @ right.T).astype(np.float64)  # numbers of pixels are exact
    union = masks.sum(axis=(1, 2))[:, np.newaxis] + truth.sum(axis=(1, 2)) - common
    shares: Floats = common / np.maximum(union, 1)
    return shares


def _depth(values: Floats) -> int | None:
    """Return how many values each keypoint has; None if the values are not keypoints."""
    depth = _DEEP if not values.shape[-1] % _DEEP and are_probabilities(values[..., 2::_DEEP]) else _FLAT
    return None if values.shape[-1] % depth else depth


def _compare_keypoints(reference: Floats, candidate: Floats, corners: Floats) -> float:
    """Return the object keypoint similarity (OKS), without keypoints that are invisible to the float model."""
    depth = _depth(reference)
    if depth is None:
        return 1.0
    points, moved = reference.reshape(-1, depth), candidate.reshape(1, -1, depth)
    visible = points[:, 2] > 1 / 2 if depth == _DEEP else np.ones(len(points), bool)
    if not visible.any():
        visible[:] = True
    return float(_similarity(np.column_stack([points[:, :_FLAT], visible]), moved, corners)[0])


def _similarity(truth: Floats, detected: Floats, corners: Floats) -> Floats:
    """Return the object keypoint similarity of each detection with one object.

    Args:
        truth: (keypoints, 3), x, y, and above 0 if it is visible.
        detected: (detections, keypoints, 2 or more).
        corners: box of the object, in pixels like the keypoints.

    Returns:
        (detections,). If no keypoint is visible, distances from the box with a margin of its own size count, as COCO takes them.
    """
    tolerance = _PERSON if len(truth) == len(_PERSON) else np.full(len(truth), 1 / len(truth))
    size = corners[_FLAT:] - corners[:_FLAT]
    area = max(_FILLED * float(size.prod()), 1.0)
    visible = truth[:, 2] > 0
    offsets = detected[..., :_FLAT] - truth[:, :_FLAT]
    if not visible.any():
        low, high = corners[:_FLAT] - size, corners[_FLAT:] + size
        offsets = np.maximum(low - detected[..., :_FLAT], 0) + np.maximum(detected[..., :_FLAT] - high, 0)
        visible = ~visible
    similarity = np.exp(-(offsets**2).sum(axis=2) / (2 * tolerance) ** 2 / area / 2)
    return np.asarray(similarity[:, visible].mean(axis=1), np.float64)
