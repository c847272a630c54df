"""Turns a detector's raw output into boxes."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.metric import Floats

# --- box outputs -----------------------------------------------------------------------------------------------------
# Finds the outputs of a detector that hold boxes, scores and classes, if each is a separate output.
#
#     boxes [1, N, 4]   scores [1, N, C]                 SSD, DETR, RT-DETR, YOLO-NAS
#     boxes [K, 4]      scores [K]        classes [K]    torchvision, and NonMaxSuppression in the model
#
# Shapes say which outputs may belong together, and values what they mean. Scores are probabilities, or logits of a
# sigmoid or of a softmax. Most boxes of an image show no object. For these boxes a sigmoid makes every class unlikely,
# and a softmax makes the background class (the first or the last) likely. Boxes are two corners, or centre and size.
# If the values do not show the form without doubt, the outputs are not read: offsets from anchors that only the caller
# knows must be decoded first.


_BOXES_IN_ORDER: Final = 0.99
"""Share of boxes whose right and bottom must not be less than their left and top."""
_SMALLEST_SHARE: Final = 0.5
"""Smallest share of the boxes of a picture without an object."""
_SUM: Final = 0.02
"""Largest difference from 1 of the sum of softmax probabilities."""
_NAMES: Final = re.compile(r"class|label", re.IGNORECASE)
"""Names that exporters give to the output of classes; used if several outputs could be it."""

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class BoxOutputs:
    """The outputs that together hold the boxes of one image.

    Attributes:
        boxes, scores, classes: the outputs' names; `classes` is empty if the scores have a column for each class.
        corners: boxes are corners; else centres and sizes.
        logits: scores are logits.
        background: the class that means "nothing", for a softmax; None for sigmoids and for class numbers.
        columns: scores have a row for each class, as NonMaxSuppression reads them.
    """

    boxes: str
    scores: str
    classes: str = ""
    corners: bool = True
    logits: bool = False
    background: int | None = None
    columns: bool = False

    @property
    def layout(self) -> BoxLayout:
        """The layout of these boxes: final detections if there are class numbers, else class scores."""
        return BoxLayout.FINAL if self.classes else BoxLayout.CLASSES

    def read(self, outputs: Outputs) -> RawBoxes:
        """Return the boxes of one image: corners for final detections, else centres and sizes."""
        boxes = _rows(outputs[self.boxes]).astype(np.float64)
        if self.classes:
            scores, classes = (
                outputs[name].reshape(-1).astype(np.float64) for name in (self.scores, self.classes)
            )
            return of_detections(boxes, scores, classes)
        if self.corners:
            low, high = boxes[:, :2], boxes[:, 2:]
            boxes = np.concatenate([(low + high) / 2, high - low], axis=1)
        scores = _rows(outputs[self.scores])
        return RawBoxes(boxes=boxes, scores=self._probabilities(scores.T if self.columns else scores))

    def _probabilities(self, values: NDArray[Any]) -> Floats:
        scores: Floats = values.astype(np.float64)
        if self.background is None:
            return 1 / (1 + np.exp(-np.clip(scores, -700, 700))) if self.logits else scores
        if self.logits:
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores = powers / powers.sum(axis=1, keepdims=True)
        if scores.shape[1] == 2:
            return scores[:, [1 - self.background]]
        # removing the background must not renumber the other classes
        scores[:, self.background] = 0.0
        return scores


def box_outputs(outputs: Outputs) -> BoxOutputs | None:
    """Return the outputs that together hold the boxes of one image; None if the result is not certain."""
    of_numbers = {name: values for name, values in outputs.items() if values.dtype.kind in "fiu"}
    sizes = {values.shape[-2] for values in of_numbers.values() if _has_boxes(values)}
    for find in (_final, _dense):
        if find is _dense and len(sizes) > 1:
            break  # feature maps of several sizes: none holds all detections
        candidates = [
            candidate
            for name, values in of_numbers.items()
            if _is_boxes(values)
            for candidate in find(
                name, {output: of_numbers[output] for output in of_numbers if output != name}, values
            )
        ]
        if candidates:
            return candidates[0] if len(candidates) == 1 else None
    return None


def boxes_of_rows(name: str, outputs: Outputs) -> str | None:
    """Return the output that has one box for each value of the output `name`; None if there is none."""
    size = outputs[name].size
    matching = (
        output
        for output, values in outputs.items()
        if output != name and _has_boxes(values) and values.shape[-2] == size
    )
    return next(matching, None) if size > 1 else None


def count_listed(outputs: Outputs) -> int | None:
    """Return the length of a list of detections for one image; None if the output is not such a list."""
    boxes = box_outputs(outputs) if len(outputs) > 1 else None
    if boxes is not None:
        return outputs[boxes.scores].size if boxes.classes else None
    first = next(iter(outputs.values()))
    layout = layout_of(first)
    return first.shape[-2] if isinstance(layout, BoxLayout) and layout.is_final else None


def _rows(values: NDArray[Any]) -> NDArray[Any]:
    """Return an output for one image as a matrix, without axes of length 1 except the last two."""
    return values.reshape(values.shape[-2], values.shape[-1])


def _is_boxes(values: NDArray[Any]) -> bool:
    return _has_boxes(values) and bool(np.isfinite(values).all())


def _has_boxes(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "f" and _is_matrix(values) and values.shape[-1] == BOX


def _is_matrix(values: NDArray[Any]) -> bool:
    return values.ndim >= 2 and all(size == 1 for size in values.shape[:-2])


def _final(name: str, further: Outputs, values: NDArray[Any]) -> Iterator[BoxOutputs]:
    """Yield the outputs that form final detections with the boxes in `name`; nothing if none fits."""
    boxes = _rows(values)
    if not _in_order(boxes):
        return
    alike = {
        output: further_values.reshape(-1)
        for output, further_values in further.items()
        if further_values.ndim
        and further_values.size == len(boxes) == max(further_values.shape)
        and np.isfinite(further_values).all()
    }
    classes = [output for output, further_values in alike.items() if _is_integral(further_values)]
    for is_likelier in (_NAMES.search, lambda output: alike[output].dtype.kind != "f"):
        # the scores of an image without objects may be integers too
        if len(classes) > 1:
            classes = [output for output in classes if is_likelier(output)] or classes
    scores = [
        output
        for output, further_values in alike.items()
        if further_values.dtype.kind == "f" and are_probabilities(further_values) and output not in classes
    ]
    if len(scores) == len(classes) == 1:
        yield BoxOutputs(boxes=name, scores=scores[0], classes=classes[0])


def _dense(name: str, further: Outputs, values: NDArray[Any]) -> Iterator[BoxOutputs]:
    """Yield the outputs that have a score for each class and each box in `name`; nothing if none fits."""
    boxes = _rows(values)
    corners = _in_order(boxes)
    if len(boxes) <= 1 or not (corners or (boxes[:, 2:] >= 0).all()):
        return
    for output, further_values in further.items():
        if (
            further_values.dtype.kind != "f"
            or not _is_matrix(further_values)
            or not np.isfinite(further_values).all()
        ):
            continue
        columns = further_values.shape[-2] != len(boxes)
        scores: Floats = (_rows(further_values).T if columns else _rows(further_values)).astype(np.float64)
        if len(scores) != len(boxes):
            continue
        is_logits = not are_probabilities(scores)
        background = _background(scores, is_logits=is_logits)
        if background is not None or _says_nothing(scores, is_logits=is_logits):
            yield BoxOutputs(
                boxes=name,
                scores=output,
                corners=corners,
                logits=is_logits,
                background=background,
                columns=columns,
            )


def _background(scores: Floats, *, is_logits: bool) -> int | None:
    """Return the column of a softmax that is the background: likely in most rows, and the first or last; else None."""
    columns = scores.shape[1]
    if columns == 1 or (not is_logits and np.abs(scores.sum(axis=1) - 1).max() > _SUM):
        return None
    least = 0.0 if is_logits else 0.5
    best = scores.argmax(axis=1)
    return next(
        (
            column
            for column in (0, columns - 1)
            if ((best == column) & (scores[:, column] > least)).mean() > _SMALLEST_SHARE
        ),
        None,
    )


def _says_nothing(scores: Floats, *, is_logits: bool) -> bool:
    """Return True if most rows have a best score below 0.5 (for logits, below 0): they show no object."""
    likely = scores.max(axis=1) > (0.0 if is_logits else 0.5)
    return bool(likely.mean() < _SMALLEST_SHARE)


def _in_order(boxes: NDArray[Any]) -> bool:
    return not len(boxes) or bool((boxes[:, 2:] >= boxes[:, :2]).all(axis=1).mean() >= _BOXES_IN_ORDER)


def _is_integral(values: NDArray[Any]) -> bool:
    return values.dtype.kind != "f" or bool((values == np.rint(values)).all())


# --- layouts ---------------------------------------------------------------------------------------------------------
# Finds the layout of a detector output, among those of public exporters, by its values.
#
#     [1, N, 5 + C]   centre x, centre y, width, height, objectness, classes       YOLOv5 to v7, YOLOX
#     [1, 4 + C, N]   the same without objectness, a box a column                  YOLOv8, v9, v11, v12
#     [1, N, 4 + C]   that transposed
#     [1, K, 6]       left, top, right, bottom, score, class: final detections     YOLOv10, YOLO26, NMS in the model
#     [K, 6]          class, score, left, top, right, bottom: the same             PaddleDetection
#
# Names and shapes do not distinguish them: [1, 84, 8400] may be a spectrum, [1, 300, 6] a sequence of six classes, and
# [1, N, 85] has an objectness or one more class. If no layout explains the values without doubt, the output is not
# read: the agreement of a coordinate would be a figure that only looks right.


BOX: Final = 4
"""Number of leading columns that hold the box."""
CONFIDENT: Final = 0.25
"""Score from which YOLO's own demos show a box."""
_SLACK = 0.05
"""How far outside 0 to 1 a probability may be after a coarse scale."""
_TRAINED_NOWHERE = 0.02
"""Smallest median over all boxes of the best class after the fifth column if the fifth column is an
objectness. Beside an objectness, classes are trained only on objects and have values everywhere (YOLOX-nano
on photographs: 0.13 to 0.19).
"""
_TRAINED_EVERYWHERE = 0.005
"""Largest value of that median if the fifth column is a class. Without an objectness, classes are trained to
be zero on the background (a YOLOv8 of 18 classes: at most 0.0001).
"""
_CONSTANT = 0.999
"""Value of the fifth column in YOLOv6, which has no objectness and writes ones."""
_CLASSES = 10_000
"""Upper bound of the number of classes."""
_AXES = 3
"""Axes of a detector's output: batch, and boxes and their values in either order."""
_FINAL = 6
"""Columns of a final detection."""
_CLASS_FIRST = [2, 3, 4, 5, 1, 0]
"""Columns of PaddleDetection's rows, in the order of the other exporters."""
_CORNERS_IN_ORDER = 0.99
"""Share of final detections whose right and bottom must not be less than their left and top."""


class BoxLayout(enum.Enum):
    """The layout of a detector's output: the meaning of its axes, and of the columns of its rows."""

    OFFSETS = enum.auto()
    """Objectness with boxes that are not decoded: offsets in grid cells and logarithms of sizes, as YOLOX exports them."""
    OBJECTNESS = enum.auto()
    OBJECTNESS_COLUMNS = enum.auto()
    CLASSES = enum.auto()
    CLASSES_COLUMNS = enum.auto()
    FINAL = enum.auto()
    FINAL_CLASS_FIRST = enum.auto()

    @property
    def is_final(self) -> bool:
        """True if boxes are corners, and each box has one stated class."""
        return self in {BoxLayout.FINAL, BoxLayout.FINAL_CLASS_FIRST}


@dataclass(frozen=True, kw_only=True, slots=True)
class NoScores:
    """Result for an output without a known layout.

    In messages, `why` follows the words "an output of shape (1, 2, 3) ".
    """

    why: str


NO_BOXES: Final = NoScores(why="holds neither the class scores of one sample nor boxes")
_EITHER: Final = NoScores(
    why="looks like boxes, but it is unclear whether the fifth column is an objectness or a class"
)
_BOTH: Final = NoScores(why="could hold a box in each row, or in each column")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RawBoxes:
    """All boxes of one image, before non-maximum suppression.

    Attributes:
        boxes: (boxes, 4), as the layout writes them.
        scores: (boxes, classes), class score times objectness if there is one.
        rows: number of the detection of each box in the output, if padding was left out; None: boxes are all detections.
    """

    boxes: Floats
    scores: Floats
    rows: NDArray[np.intp] | None = None


def layout_of(output: NDArray[Any]) -> BoxLayout | NoScores:
    """Return the layout of a detector's output for one image, or the reason if none fits or several fit.

    The layout is read from the float model's output and used for the quantized model's output too, because a damaged
    output may not look like a detector's.
    """
    is_list = output.ndim == 2 and output.shape[1] == _FINAL
    if not (is_list or (output.ndim == 3 and output.shape[0] == 1)):
        return NO_BOXES
    if not output.size or not np.isfinite(output).all():
        return NO_BOXES
    rows: Floats = output.reshape(output.shape[-2:]).astype(np.float64)
    if _is_final(rows):
        return BoxLayout.FINAL
    if _is_final(rows[:, _CLASS_FIRST] if rows.shape[1] == _FINAL else rows):
        return BoxLayout.FINAL_CLASS_FIRST
    if is_list:
        return NO_BOXES
    across = _looks_like_boxes(rows)
    # boxes are columns only in decoded heads with thousands of boxes: with fewer boxes than classes the output is
    # something else
    down = len(rows) <= rows.shape[1] and _looks_like_boxes(rows.T) and _is_decoded(rows.T)
    if across and down:
        return _BOTH
    if not (across or down):
        return NO_BOXES
    if across and rows[:, 2:BOX].min() < 0:
        return BoxLayout.OFFSETS if rows.shape[1] > BOX + 1 else NO_BOXES
    has_objectness = _with_objectness(rows if across else rows.T)
    if has_objectness is None:
        return _EITHER
    if across:
        return BoxLayout.OBJECTNESS if has_objectness else BoxLayout.CLASSES
    return BoxLayout.OBJECTNESS_COLUMNS if has_objectness else BoxLayout.CLASSES_COLUMNS


def lists_nothing(output: NDArray[Any]) -> bool:
    """Return True if the output for one image has the shape of final detections, and every row is padding."""
    if output.ndim < 2 or output.shape[-1] != _FINAL or output.shape[:-2] not in {(), (1,)}:
        return False
    rows: Floats = output.reshape(output.shape[-2:]).astype(np.float64)
    orders = (rows, rows[:, _CLASS_FIRST])
    return not any(((order[:, BOX] > 0) & (order[:, BOX + 1] >= 0)).any() for order in orders)


def without_extra(output: NDArray[Any], extra: int) -> NDArray[Any]:
    """Return a detector's output without the last `extra` values of each detection: mask coefficients, keypoints.

    In final detections, each row is a detection. In raw boxes, the longer axis counts the boxes.
    """
    if not extra or output.ndim != _AXES or extra >= max(output.shape[1:]):
        return output
    return output[..., :-extra] if _is_row(output, extra) else output[:, :-extra]


def extra_of(output: NDArray[Any], extra: int) -> Floats:
    """Return the last `extra` values of each detection, which `without_extra` removes: (detections, extra)."""
    values = output[0, :, -extra:] if _is_row(output, extra) else output[0, -extra:].T
    return values.astype(np.float64)


def _is_row(output: NDArray[Any], extra: int) -> bool:
    return bool(output.shape[2] - extra == _FINAL or output.shape[2] < output.shape[1])


def candidates(output: NDArray[Any], layout: BoxLayout) -> RawBoxes:
    """Return all boxes of one image, from an output in a known layout."""
    rows: Floats = output.reshape(output.shape[-2:]).astype(np.float64)
    match layout:
        case BoxLayout.FINAL | BoxLayout.FINAL_CLASS_FIRST:
            rows = rows if layout is BoxLayout.FINAL else rows[:, _CLASS_FIRST]
            return of_detections(rows[:, :BOX], rows[:, BOX], rows[:, BOX + 1])
        case BoxLayout.OFFSETS | BoxLayout.OBJECTNESS | BoxLayout.OBJECTNESS_COLUMNS:
            rows = rows.T if layout is BoxLayout.OBJECTNESS_COLUMNS else rows
            return RawBoxes(boxes=rows[:, :BOX], scores=rows[:, BOX : BOX + 1] * rows[:, BOX + 1 :])
        case BoxLayout.CLASSES | BoxLayout.CLASSES_COLUMNS:
            rows = rows if layout is BoxLayout.CLASSES else rows.T
            return RawBoxes(boxes=rows[:, :BOX], scores=rows[:, BOX:])


def of_detections(boxes: Floats, scores: Floats, classes: Floats) -> RawBoxes:
    """Return final detections as corners (boxes, 4) and scores (boxes, classes).

    Padding rows have no score above zero, or class -1.
    """
    numbers = np.rint(classes)
    live = (scores > 0) & (numbers >= 0) & (numbers < _CLASSES)
    kinds = numbers[live].astype(np.intp)
    scored = np.zeros((len(kinds), int(kinds.max(initial=0)) + 1))
    scored[np.arange(len(kinds)), kinds] = scores[live]
    return RawBoxes(boxes=boxes[live], scores=scored, rows=np.flatnonzero(live))


def _is_final(rows: Floats) -> bool:
    """Return True if each row is a detection: an integer class, one probability, and ordered corners in pixels."""
    if rows.shape[1] != _FINAL:
        return False
    scores, classes = rows[:, BOX], rows[:, BOX + 1]
    live = (scores > 0) & (classes >= 0)
    if not live.any() or (classes != np.rint(classes)).any() or classes.max() >= _CLASSES:
        return False
    sizes = rows[live, 2:BOX] - rows[live, :2]
    return bool(
        scores.max() <= 1 + _SLACK
        and (sizes >= 0).all(axis=1).mean() >= _CORNERS_IN_ORDER
        and (np.median(sizes, axis=0) > 1).all()
    )


def _looks_like_boxes(rows: Floats) -> bool:
    """Return True if the values of rows are probabilities after the fourth column, but not before.

    Logits, hidden states and probabilities of a sequence have the same shape, but leave 0 to 1 after the fourth column,
    or in none.
    """
    if rows.shape[1] <= BOX:
        return False
    return are_probabilities(rows[:, BOX:]) and not are_probabilities(rows[:, :BOX])


def _is_decoded(rows: Floats) -> bool:
    """Return True if boxes are in pixels: centres inside a picture, no negative sizes."""
    return bool((rows[:, 2:BOX] >= 0).all() and (np.median(rows[:, :BOX], axis=0) > 1).all())


def _with_objectness(rows: Floats) -> bool | None:
    """Return True if the fifth column of box rows is an objectness, False if not, None if unknown."""
    if rows.shape[1] == BOX + 1:
        return False if _is_decoded(rows) else None
    if rows[:, BOX].min() >= _CONSTANT:
        return True
    behind = float(np.median(rows[:, BOX + 1 :].max(axis=1)))
    if behind >= _TRAINED_NOWHERE:
        return True
    return False if behind <= _TRAINED_EVERYWHERE and _is_decoded(rows) else None


def are_probabilities(values: NDArray[Any]) -> bool:
    """Return True if all values are from 0 to 1, within the rounding error of a coarse quantization scale."""
    if not values.size:
        return True
    return bool(values.min() >= -_SLACK and values.max() <= 1 + _SLACK)


# --- detections ------------------------------------------------------------------------------------------------------


# PASCAL VOC counts boxes with this overlap as one object.
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
        rows: (boxes,) number of each among the raw boxes.
    """

    corners: Floats
    classes: NDArray[np.intp]
    rows: NDArray[np.intp]


def agreement(reference: RawBoxes, candidate: RawBoxes, layout: BoxLayout) -> tuple[int, int] | None:
    """Return how many boxes of two models match, and how many boxes there are; None if boxes cannot be decoded."""
    left, right = detections(reference, layout), detections(candidate, layout)
    if left is None or right is None:
        return None
    return 2 * len(match_boxes(left, right)), len(left.classes) + len(right.classes)


def detections(raw: RawBoxes, layout: BoxLayout) -> Detections | None:
    """Return the confident boxes of an image after non-maximum suppression; None if no YOLOX grid fits."""
    every = corners_of(raw, layout)
    if every is None:
        return None
    best = raw.scores.max(axis=1)
    order = np.argsort(-best, kind="stable")[:_MOST]
    order = order[best[order] >= CONFIDENT]
    return _suppress_overlaps(every[order], raw.scores[order].argmax(axis=1), order)


def corners_of(raw: RawBoxes, layout: BoxLayout) -> Floats | None:
    """Return all boxes of one image as corners (boxes, 4): left, top, right, bottom.

    The output of a YOLOX head without decoding is decoded here, for strides 8, 16 and 32 over a square image. None if
    the boxes fit no such grid.
    """
    boxes = raw.boxes
    if layout is BoxLayout.OFFSETS:
        grid = _grid(len(boxes))
        if grid is None:
            return None
        cells, strides = grid
        boxes = np.concatenate(
            [(boxes[:, :2] + cells) * strides, np.exp(np.minimum(boxes[:, 2:], 20)) * strides], axis=1
        )
    if layout.is_final:
        return boxes
    half = boxes[:, 2:] / 2
    corners: Floats = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return corners


def match_boxes(reference: Detections, candidate: Detections) -> list[tuple[int, int]]:
    """Return matching boxes of two models: of the same class, and overlapping by half. Each box is used once."""
    free = np.ones(len(candidate.classes), dtype=bool)
    pairs = []
    for number, (corners, kind) in enumerate(zip(reference.corners, reference.classes, strict=True)):
        overlap = np.where(free & (candidate.classes == kind), shared_area(corners, candidate.corners), 0.0)
        if overlap.size and overlap.max() >= _OVERLAP:
            best = int(overlap.argmax())
            free[best] = False
            pairs.append((number, best))
    return pairs


def _suppress_overlaps(corners: Floats, classes: NDArray[np.intp], rows: NDArray[np.intp]) -> Detections:
    kept: list[int] = []
    for number in range(len(classes)):
        rivals = [rival for rival in kept if classes[rival] == classes[number]]
        if not rivals or shared_area(corners[number], corners[rivals]).max() < _OVERLAP:
            kept.append(number)
    return Detections(corners=corners[kept], classes=classes[kept], rows=rows[kept])


def shared_area(box: Floats, boxes: Floats) -> Floats:
    """Return the intersection over union of one box with many."""
    low, high = np.maximum(box[:2], boxes[:, :2]), np.minimum(box[2:], boxes[:, 2:])
    common = np.maximum(high - low, 0).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (boxes[:, 2:] - boxes[:, :2]).prod(axis=1) - common
    shares: Floats = np.divide(common, union, out=np.zeros_like(common), where=union > 0)
    return shares


def _grid(count: int) -> tuple[Floats, Floats] | None:
    """Return cell coordinates and stride of every detection row in a square image; None if no grid has so many rows."""
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
