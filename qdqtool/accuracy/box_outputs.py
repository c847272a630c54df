"""Finds the outputs of a detector that hold boxes, scores and classes, if each is a separate output.

    boxes [1, N, 4]   scores [1, N, C]                 SSD, DETR, RT-DETR, YOLO-NAS
    boxes [K, 4]      scores [K]        classes [K]    torchvision, and NonMaxSuppression in the model

Shapes say which outputs may belong together, and values what they mean. Scores are probabilities, or logits of a sigmoid
or of a softmax: most boxes of a picture show nothing, of which a sigmoid says that every class is unlikely, and a softmax
that one class, the first or the last, is likely: the background. Boxes are corners in order, or centres and sizes. What is
neither beyond doubt is not read: offsets from anchors that only the caller knows are no boxes yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qdqtool.accuracy.layouts import (
    BOX,
    BoxLayout,
    RawBoxes,
    are_probabilities,
    layout_of,
    of_detections,
)
from qdqtool.accuracy.metric import Floats

_IN_ORDER: Final = 0.99
"""Share of boxes whose right and bottom must not be less than their left and top."""
_MOST: Final = 0.5
"""Smallest share of the boxes of a picture that show nothing."""
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
        background: the class that says "nothing", by a softmax; None of sigmoids, and of classes.
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
        """The single-output layout with the same rows."""
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
        # the other classes keep their numbers
        scores[:, self.background] = 0.0
        return scores


def box_outputs(outputs: Outputs) -> BoxOutputs | None:
    """Return the outputs that hold the boxes of one image; None if this is not certain."""
    of_numbers = {name: values for name, values in outputs.items() if values.dtype.kind in "fiu"}
    sizes = {values.shape[-2] for values in of_numbers.values() if _has_boxes(values)}
    for find in (_final, _dense):
        if find is _dense and len(sizes) > 1:
            break  # maps of several sizes, none of which holds all that the detector finds
        found = [
            one
            for name, values in of_numbers.items()
            if _is_boxes(values)
            for one in find(name, {other: of_numbers[other] for other in of_numbers if other != name}, values)
        ]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def boxes_of_rows(name: str, outputs: Outputs) -> str | None:
    """Return the output with a box for each value of this output; None if there is none, so that the values may be classes."""
    size = outputs[name].size
    found = (
        other
        for other, values in outputs.items()
        if other != name and _has_boxes(values) and values.shape[-2] == size
    )
    return next(found, None) if size > 1 else None


def listed(outputs: Outputs) -> int | None:
    """Return how many detections these outputs of one image list; None if they list none, or one per place of a map."""
    found = box_outputs(outputs) if len(outputs) > 1 else None
    if found is not None:
        return outputs[found.scores].size if found.classes else None
    first = next(iter(outputs.values()))
    layout = layout_of(first)
    return first.shape[-2] if isinstance(layout, BoxLayout) and layout.is_final else None


def _rows(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values of one image as a matrix, without axes of length 1 except the last two."""
    return values.reshape(values.shape[-2], values.shape[-1])


def _is_boxes(values: NDArray[Any]) -> bool:
    return _has_boxes(values) and bool(np.isfinite(values).all())


def _has_boxes(values: NDArray[Any]) -> bool:
    return values.dtype.kind == "f" and _is_matrix(values) and values.shape[-1] == BOX


def _is_matrix(values: NDArray[Any]) -> bool:
    return values.ndim >= 2 and all(size == 1 for size in values.shape[:-2])


def _final(name: str, others: Outputs, values: NDArray[Any]) -> Iterator[BoxOutputs]:
    """Return final detections: corners in order, each with a probability and an integer; None if the outputs hold none."""
    boxes = _rows(values)
    if not _in_order(boxes):
        return
    alike = {
        other: found.reshape(-1)
        for other, found in others.items()
        if found.ndim and found.size == len(boxes) == max(found.shape) and np.isfinite(found).all()
    }
    classes = [other for other, found in alike.items() if _is_integral(found)]
    for is_likelier in (_NAMES.search, lambda other: alike[other].dtype.kind != "f"):
        # scores of a picture without objects may be integers too
        if len(classes) > 1:
            classes = [other for other in classes if is_likelier(other)] or classes
    scores = [
        other
        for other, found in alike.items()
        if found.dtype.kind == "f" and are_probabilities(found) and other not in classes
    ]
    if len(scores) == len(classes) == 1:
        yield BoxOutputs(boxes=name, scores=scores[0], classes=classes[0])


def _dense(name: str, others: Outputs, values: NDArray[Any]) -> Iterator[BoxOutputs]:
    """Return boxes with a score for each class, before any is removed; None if the outputs hold none."""
    boxes = _rows(values)
    corners = _in_order(boxes)
    if len(boxes) <= 1 or not (corners or (boxes[:, 2:] >= 0).all()):
        return
    for other, found in others.items():
        if found.dtype.kind != "f" or not _is_matrix(found) or not np.isfinite(found).all():
            continue
        columns = found.shape[-2] != len(boxes)
        scores: Floats = (_rows(found).T if columns else _rows(found)).astype(np.float64)
        if len(scores) != len(boxes):
            continue
        is_logits = not are_probabilities(scores)
        background = _background(scores, is_logits=is_logits)
        if background is not None or _says_nothing(scores, is_logits=is_logits):
            yield BoxOutputs(
                boxes=name,
                scores=other,
                corners=corners,
                logits=is_logits,
                background=background,
                columns=columns,
            )


def _background(scores: Floats, *, is_logits: bool) -> int | None:
    """Return the first or last column of a softmax if it is likely in most rows: the background."""
    columns = scores.shape[1]
    if columns == 1 or (not is_logits and np.abs(scores.sum(axis=1) - 1).max() > _SUM):
        return None
    least = 0.0 if is_logits else 0.5
    best = scores.argmax(axis=1)
    return next(
        (
            column
            for column in (0, columns - 1)
            if ((best == column) & (scores[:, column] > least)).mean() > _MOST
        ),
        None,
    )


def _says_nothing(scores: Floats, *, is_logits: bool) -> bool:
    """Return True if most rows have no likely class."""
    likely = scores.max(axis=1) > (0.0 if is_logits else 0.5)
    return bool(likely.mean() < _MOST)


def _in_order(boxes: NDArray[Any]) -> bool:
    return not len(boxes) or bool((boxes[:, 2:] >= boxes[:, :2]).all(axis=1).mean() >= _IN_ORDER)


def _is_integral(values: NDArray[Any]) -> bool:
    return values.dtype.kind != "f" or bool((values == np.rint(values)).all())
