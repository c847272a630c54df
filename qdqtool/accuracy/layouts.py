"""Finds the layout of a detector output, among those of public exporters, by its values.

    [1, N, 5 + C]   centre x, centre y, width, height, objectness, classes       YOLOv5 to v7, YOLOX
    [1, 4 + C, N]   the same without objectness, a box a column                  YOLOv8, v9, v11, v12
    [1, N, 4 + C]   that transposed
    [1, K, 6]       left, top, right, bottom, score, class: final detections     YOLOv10, YOLO26, NMS in the model
    [K, 6]          class, score, left, top, right, bottom: the same             PaddleDetection

Names and shapes do not tell them apart: [1, 84, 8400] may be a spectrum, [1, 300, 6] a sequence of six classes, and
[1, N, 85] has an objectness or one class more. What no layout explains beyond doubt is not read at all: agreement of a
coordinate would be a figure that looks right.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.metric import Floats

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
_FINAL = 6
"""Columns of a final detection."""
_CLASS_FIRST = [2, 3, 4, 5, 1, 0]
"""Columns of PaddleDetection's rows, in the order of the other exporters."""
_IN_ORDER = 0.99
"""Share of final detections whose right and bottom must not be less than their left and top."""


class BoxLayout(enum.Enum):
    """Meaning of the axes of an output, and of the columns of its rows."""

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
        """True if boxes are corners with one given class each."""
        return self in {BoxLayout.FINAL, BoxLayout.FINAL_CLASS_FIRST}


@dataclass(frozen=True, kw_only=True, slots=True)
class NoScores:
    """The output has no known layout; `why` continues the sentence "an output of shape (1, 2, 3) "."""

    why: str


NO_BOXES: Final = NoScores(why="holds neither the class scores of one sample nor boxes")
_EITHER: Final = NoScores(
    why="looks like boxes, but it is unclear whether the fifth column is an objectness or a class"
)
_BOTH: Final = NoScores(why="could hold a box in each row, or in each column")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RawBoxes:
    """The boxes of one image before any is removed.

    Attributes:
        boxes: (boxes, 4), as the layout writes them.
        scores: (boxes, classes), class score times objectness where there is one.
    """

    boxes: Floats
    scores: Floats


def layout_of(output: NDArray[Any]) -> BoxLayout | NoScores:
    """Return the layout of one image's output, or the reason if none or several fit.

    Ask the float model's output and read the quantized model's by the answer: a model that was damaged no longer looks like
    what it is.
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
    # columns are what decoded heads of thousands of boxes have: fewer boxes than classes are something else
    down = len(rows) <= rows.shape[1] and _looks_like_boxes(rows.T) and _is_decoded(rows.T)
    if across and down:
        return _BOTH
    if not (across or down):
        return NO_BOXES
    if across and rows[:, 2:BOX].min() < 0:
        return BoxLayout.OFFSETS if rows.shape[1] > BOX + 1 else NO_BOXES
    found = _with_objectness(rows if across else rows.T)
    if found is None:
        return _EITHER
    if across:
        return BoxLayout.OBJECTNESS if found else BoxLayout.CLASSES
    return BoxLayout.OBJECTNESS_COLUMNS if found else BoxLayout.CLASSES_COLUMNS


def candidates(output: NDArray[Any], layout: BoxLayout) -> RawBoxes:
    """Return the boxes of one image in a known layout."""
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
    """Return corners (boxes, 4), and one score and class per box, as a row of scores.

    Padding rows have no score above zero, or class -1.
    """
    numbers = np.rint(classes)
    live = (scores > 0) & (numbers >= 0) & (numbers < _CLASSES)
    kinds = numbers[live].astype(np.intp)
    found = np.zeros((len(kinds), int(kinds.max(initial=0)) + 1))
    found[np.arange(len(kinds)), kinds] = scores[live]
    return RawBoxes(boxes=boxes[live], scores=found)


def _is_final(rows: Floats) -> bool:
    """Return True if each row is a detection: an integer class, one probability, corners in order and in pixels."""
    if rows.shape[1] != _FINAL:
        return False
    scores, classes = rows[:, BOX], rows[:, BOX + 1]
    live = (scores > 0) & (classes >= 0)
    if not live.any() or (classes != np.rint(classes)).any() or classes.max() >= _CLASSES:
        return False
    sizes = rows[live, 2:BOX] - rows[live, :2]
    return bool(
        scores.max() <= 1 + _SLACK
        and (sizes >= 0).all(axis=1).mean() >= _IN_ORDER
        and (np.median(sizes, axis=0) > 1).all()
    )


def _looks_like_boxes(rows: Floats) -> bool:
    """Return True if the values after the fourth column, and only they, are probabilities.

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
    """Return whether the fifth column is an objectness; None if the values do not show it."""
    if rows.shape[1] == BOX + 1:
        return False if _is_decoded(rows) else None
    if rows[:, BOX].min() >= _CONSTANT:
        return True
    behind = float(np.median(rows[:, BOX + 1 :].max(axis=1)))
    if behind >= _TRAINED_NOWHERE:
        return True
    return False if behind <= _TRAINED_EVERYWHERE and _is_decoded(rows) else None


def are_probabilities(values: NDArray[Any]) -> bool:
    """Return True if all values are probabilities, up to the error of a coarse scale."""
    if not values.size:
        return True
    return bool(values.min() >= -_SLACK and values.max() <= 1 + _SLACK)
