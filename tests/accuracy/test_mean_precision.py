"""Mean average precision against a plain loop, and at its ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from qdqtool.accuracy.detections import BoxLayout, RawBoxes
from qdqtool.accuracy.mean_precision import MeanPrecision, box_overlaps, keep_boxes
from qdqtool.core.comparison import MAP, MAP50, Comparison, TaskAccuracy, decisive

CLASSES = 3


def picture(rng: np.random.Generator, *, noise: float) -> tuple[RawBoxes, np.ndarray]:
    """Objects far from one another, and a box for each that is off by some pixels, with a score, or missing."""
    count = int(rng.integers(0, 5))
    corners = np.stack([100.0 * np.arange(count), np.zeros(count)], axis=1)
    sizes = rng.uniform(40, 80, (count, 2))
    kinds = rng.integers(0, CLASSES, count)
    truth = np.column_stack([kinds, corners, corners + sizes]).reshape(-1, 5)
    moved = corners + rng.normal(0, noise, (count, 2))
    said = np.where(rng.random(count) < 0.2, rng.integers(0, CLASSES, count), kinds)
    scores = np.zeros((count, CLASSES))
    scores[np.arange(count), said] = rng.uniform(0.1, 1, count)
    boxes = np.concatenate([moved + sizes / 2, sizes], axis=1)
    return RawBoxes(boxes=boxes, scores=scores), truth


def record(meter: MeanPrecision, raws: tuple[RawBoxes, RawBoxes], truth: np.ndarray) -> None:
    sides = tuple(keep_boxes(raw, BoxLayout.CLASSES) for raw in raws)
    meter.record(sides, tuple(box_overlaps(side, truth[:, 1:]) for side in sides), truth[:, 0])


def area(box: np.ndarray, other: np.ndarray) -> float:
    low, high = np.maximum(box[:2], other[:2]), np.minimum(box[2:], other[2:])
    common = max(0.0, high[0] - low[0]) * max(0.0, high[1] - low[1])
    whole = (box[2:] - box[:2]).prod() + (other[2:] - other[:2]).prod() - common
    return float(common / whole)


@dataclass
class Picture:
    """Detections of a picture: scores, classes, overlaps[box][object]; the classes of objects, and which to ignore."""

    scores: list[float]
    classes: list[int]
    overlaps: list[list[float]]
    truth: list[int]
    ignored: list[bool]


def as_picture(raw: RawBoxes, truth: np.ndarray) -> Picture:
    picture = Picture([], [], [], [int(kind) for kind in truth[:, 0]], [False] * len(truth))
    for row, scores in enumerate(raw.scores):
        half = raw.boxes[row, 2:] / 2
        box = np.concatenate([raw.boxes[row, :2] - half, raw.boxes[row, :2] + half])
        for kind in np.flatnonzero(scores >= 0.001):
            picture.scores.append(float(scores[kind]))
            picture.classes.append(int(kind))
            picture.overlaps.append([area(box, each[1:]) for each in truth])
    return picture


def plain(pictures: list[Picture]) -> tuple[float, float]:
    """The definition of COCO, box by box."""
    means = []
    for least in np.linspace(0.5, 0.95, 10):
        every = []
        for kind in range(CLASSES):
            labelled = sum(
                each == kind and not drop
                for picture in pictures
                for each, drop in zip(picture.truth, picture.ignored, strict=True)
            )
            if not labelled:
                continue
            found = sorted(
                (-picture.scores[row], number, row)
                for number, picture in enumerate(pictures)
                for row in range(len(picture.scores))
                if picture.classes[row] == kind
            )
            used, right, wrong, curve = set(), 0, 0, []
            for _, number, row in found:
                picture = pictures[number]
                rivals = [
                    (not picture.ignored[other], picture.overlaps[row][other], other)
                    for other in range(len(picture.truth))
                    if picture.truth[other] == kind
                    and (number, other) not in used
                    and picture.overlaps[row][other] >= least
                ]
                counts, _, best = max(rivals, default=(True, 0.0, -1))
                used.add((number, best))
                right += best >= 0 and counts
                wrong += best < 0
                curve.append((right / labelled, right / max(right + wrong, 1)))
            points = [
                max((precision for recall, precision in curve if recall >= wanted - 1e-12), default=0.0)
                for wanted in np.linspace(0, 1, 101)
            ]
            every.append(np.mean(points))
        means.append(np.mean(every))
    return 100 * float(means[0]), 100 * float(np.mean(means))


@pytest.mark.parametrize("seed", range(5))
def test_both_figures_are_those_of_a_plain_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    float_side = [picture(rng, noise=4.0) for _ in range(12)]
    other = [(RawBoxes(boxes=raw.boxes + 3, scores=raw.scores), truth) for raw, truth in float_side]
    meter = MeanPrecision()
    for (raw, truth), (moved, _) in zip(float_side, other, strict=True):
        record(meter, (raw, moved), truth)
    small, whole = meter.results()
    assert (small.metric, whole.metric) == (MAP50, MAP)
    assert (small.reference, whole.reference) == pytest.approx(
        plain([as_picture(*each) for each in float_side])
    )
    assert (small.candidate, whole.candidate) == pytest.approx(plain([as_picture(*each) for each in other]))
    for result in (small, whole):
        assert result.low <= result.candidate - result.reference <= result.high


def test_right_boxes_give_100_and_no_boxes_give_0() -> None:
    rng = np.random.default_rng(1)
    meter = MeanPrecision()
    for _ in range(10):
        _, truth = picture(rng, noise=0.0)
        scores = np.eye(CLASSES)[truth[:, 0].astype(int)].reshape(-1, CLASSES)
        sizes = truth[:, 3:] - truth[:, 1:3]
        raw = RawBoxes(boxes=np.concatenate([truth[:, 1:3] + sizes / 2, sizes], axis=1), scores=scores)
        record(meter, (raw, RawBoxes(boxes=raw.boxes, scores=scores * 0)), truth)
    for result in meter.results():
        assert result.reference == pytest.approx(100)
        assert result.candidate == 0
        assert result.high is not None
        assert result.high < 0


def test_equal_boxes_on_few_pictures_are_no_proof() -> None:
    rng = np.random.default_rng(2)
    meter = MeanPrecision()
    for _ in range(10):
        raw, truth = picture(rng, noise=2.0)
        record(meter, (raw, raw), truth)
    result = meter.results()[0]
    assert result.low is not None
    assert result.low < -10


def test_pictures_without_any_label_give_no_figure() -> None:
    meter = MeanPrecision()
    raw, _ = picture(np.random.default_rng(3), noise=1.0)
    record(meter, (raw, raw), np.zeros((0, 5)))
    assert meter.results() == ()


def test_labelled_boxes_decide_before_the_boxes_of_the_float_model() -> None:
    tasks = tuple(
        TaskAccuracy(metric=name, unit="%", reference=90.0, candidate=80.0, samples=9)
        for name in (MAP50, MAP, "agreement", "boxes")
    )
    empty = dict.fromkeys(("outputs", "tensors", "worst", "notes", "explanations"), ())
    comparison = Comparison(
        reference="a",
        candidate="b",
        samples=9,
        meaningful=True,
        task=tasks,
        **{k: v for k, v in empty.items() if k in Comparison.__dataclass_fields__},
    )
    assert [task.metric for task in decisive(comparison)] == [MAP50]
