"""Agreement of a detector's boxes in percent: the F1 score of the candidate's detections against the reference's.

Boxes count from a score of 0.25 on, after non-maximum suppression at 0.5. Two boxes agree if their classes are equal
and they overlap by half or more (as in mAP at 0.5, with the reference model as ground truth). Reads the output of
YOLO heads: with an objectness column, 1 x boxes x (5 + classes), decoded or as YOLOX exports it; without, as YOLOv8,
v9 and v11 write it, 1 x (4 + classes) x boxes, or transposed; and final detections, 1 x boxes x 6, corners, score and
class. The values of the reference decide the layout. Undefined if neither side finds a box.
"""

from __future__ import annotations

from qdqtool.accuracy.detections import NoScores, agreement, candidates, layout_of
from qdqtool.accuracy.metric import Distance, Floats, Reading


class Boxes:
    """F1 score of a detector's boxes. Counts the boxes of both sides, and matching boxes."""

    def __init__(self) -> None:
        self._boxes = 0
        self._matched = 0
        self._readable = False

    def add(self, reference: Floats, candidate: Floats) -> None:
        layout = layout_of(reference)
        if isinstance(layout, NoScores):
            return
        matches = agreement(candidates(reference, layout), candidates(candidate, layout), layout)
        if matches is None:
            return
        self._readable = True
        self._matched += matches[0]
        self._boxes += matches[1]

    def reading(self) -> Reading:
        if not self._readable:
            return Reading(value=None, note="the output does not contain boxes")
        if not self._boxes:
            return Reading(value=None, note="no difference: neither model finds a box")
        return Reading(value=100 * self._matched / self._boxes)


PLUGIN = Distance(start=Boxes, better="higher", unit="%")
