"""Mean average precision against a plain loop, and at its ends."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.accuracy.detections import BoxLayout, RawBoxes
from qdqtool.accuracy.mean_precision import MeanPrecision
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


def area(box: np.ndarray, other: np.ndarray) -> float:
    low, high = np.maximum(box[:2], other[:2]), np.minimum(box[2:], other[2:])
    common = max(0.0, high[0] - low[0]) * max(0.0, high[1] - low[1])
    whole = (box[2:] - box[:2]).prod() + (other[2:] - other[:2]).prod() - common
    return float(common / whole)


def plain(pictures: list[tuple[RawBoxes, np.ndarray]]) -> tuple[float, float]:
    """The definition of COCO, box by box."""
    means = []
    for least in np.linspace(0.5, 0.95, 10):
        every = []
        for kind in range(CLASSES):
            labelled = sum(int((truth[:, 0] == kind).sum()) for _, truth in pictures)
            if not labelled:
                continue
            found = sorted(
                (
                    (-raw.scores[row, kind], number, row)
                    for number, (raw, _) in enumerate(pictures)
                    for row in range(len(raw.scores))
                    if raw.scores[row, kind] >= 0.001
                ),
            )
            used, right, curve = set(), 0, []
            for place, (_, number, row) in enumerate(found, start=1):
                raw, truth = pictures[number]
                half = raw.boxes[row, 2:] / 2
                box = np.concatenate([raw.boxes[row, :2] - half, raw.boxes[row, :2] + half])
                rivals = [
                    (area(box, truth[other, 1:]), other)
                    for other in range(len(truth))
                    if truth[other, 0] == kind and (number, other) not in used
                ]
                best = max(rivals, default=(0.0, -1))
                if best[0] >= least:
                    used.add((number, best[1]))
                    right += 1
                curve.append((right / labelled, right / place))
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
        meter.record((raw, moved), BoxLayout.CLASSES, truth)
    small, whole = meter.results()
    assert (small.metric, whole.metric) == (MAP50, MAP)
    assert (small.reference, whole.reference) == pytest.approx(plain(float_side))
    assert (small.candidate, whole.candidate) == pytest.approx(plain(other))
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
        meter.record((raw, RawBoxes(boxes=raw.boxes, scores=scores * 0)), BoxLayout.CLASSES, truth)
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
        meter.record((raw, raw), BoxLayout.CLASSES, truth)
    result = meter.results()[0]
    assert result.low is not None
    assert result.low < -10


def test_pictures_without_any_label_give_no_figure() -> None:
    meter = MeanPrecision()
    raw, _ = picture(np.random.default_rng(3), noise=1.0)
    meter.record((raw, raw), BoxLayout.CLASSES, np.zeros((0, 5)))
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
