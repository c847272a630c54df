"""Masks and keypoints of detections are compared with those of the float model."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from qdqtool.accuracy.instances import fill_outline, judge_instances
from qdqtool.accuracy.task import Task, own_rows, read_pair
from qdqtool.core.comparison import Comparison, decisive
from qdqtool.core.protocols import Sample
from tests.accuracy.test_mean_precision import Picture, plain

SIDE, GRID, EXTRA = 64, 16, 8
SAMPLE = Sample(name="picture", feeds={"x": np.zeros((1, 3, SIDE, SIDE), np.float32)})
CORNERS = np.array([[4, 4, 28, 28], [36, 6, 60, 30], [8, 34, 40, 60]], np.float64)


def detector(extra: np.ndarray, layout: str, scores: tuple[float, ...] = (0.9, 0.8, 0.7)) -> np.ndarray:
    """Return the output of a detector of two classes that finds `CORNERS` with these further values."""
    rng = np.random.default_rng(1)
    if layout == "final":
        rows = np.concatenate([CORNERS, np.array(scores)[:, np.newaxis], np.ones((3, 1)), extra], axis=1)
        padding = np.zeros((4, rows.shape[1]))
        return np.concatenate([padding[:1], rows, padding])[np.newaxis].astype(np.float32)
    rows = np.full((200, 6 + extra.shape[1]), 1e-4)
    rows[:, :2], rows[:, 2:4] = rng.uniform(10, 50, (200, 2)), rng.uniform(4, 20, (200, 2))
    rows[:, 6:] = rng.normal(0, 5, (200, extra.shape[1]))
    for number, (corners, score) in enumerate(zip(CORNERS, scores, strict=True)):
        row = 7 + 20 * number
        rows[row, :4] = [*(corners[:2] + corners[2:]) / 2, *(corners[2:] - corners[:2])]
        rows[row, 5] = score
        rows[row, 6:] = extra[number]
    rows = rows if layout == "rows" else rows.T
    return rows[np.newaxis].astype(np.float32)


def judge(left: dict[str, np.ndarray], right: dict[str, np.ndarray], extra: int) -> tuple[str, float] | None:
    cut = [own_rows(side, SAMPLE, extra) for side in (left, right)]
    scores = read_pair(*cut)
    return judge_instances((left, right), scores.boxes, scores.layout, extra, SAMPLE)


def mask_of(coefficients: np.ndarray, prototypes: np.ndarray, corners: np.ndarray) -> set[tuple[int, int]]:
    scale = GRID / SIDE
    return {
        (row, column)
        for row in range(GRID)
        for column in range(GRID)
        if corners[0] * scale <= column < corners[2] * scale
        and corners[1] * scale <= row < corners[3] * scale
        and float(coefficients @ prototypes[0, :, row, column]) > 0
    }


@pytest.mark.parametrize("layout", ["columns", "rows", "final"])
def test_masks_count_as_much_as_they_overlap(layout: str) -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        extra = rng.normal(size=(3, EXTRA)).astype(np.float32)
        prototypes = rng.normal(size=(1, EXTRA, GRID, GRID)).astype(np.float32)
        others, shifted = extra + 0.4 * rng.normal(size=extra.shape), prototypes + 0.2
        left = {"boxes": detector(extra, layout), "masks": prototypes}
        assert judge(left, left, EXTRA) == ("masks", 1.0)
        expected = []
        for number, corners in enumerate(CORNERS):
            one = mask_of(extra[number], prototypes, corners)
            other = mask_of(others[number], shifted, corners)
            expected.append(len(one & other) / len(one | other))
        judged = judge(left, {"boxes": detector(others, layout), "masks": shifted}, EXTRA)
        assert judged is not None
        assert judged[1] == pytest.approx(np.mean(expected), abs=1e-3)


@pytest.mark.parametrize("layout", ["columns", "rows", "final"])
@pytest.mark.parametrize("points", [17, 5])
def test_keypoints_count_by_their_similarity(layout: str, points: int) -> None:
    rng = np.random.default_rng(points)
    extra = rng.uniform(10, 50, (3, points, 3))
    extra[..., 2] = rng.uniform(0, 1, (3, points))
    moved = extra + rng.normal(0, 2, extra.shape) * [1, 1, 0]
    left, right = (
        {"boxes": detector(side.reshape(3, -1).astype(np.float32), layout)} for side in (extra, moved)
    )
    assert judge(left, left, 3 * points) == ("keypoints", 1.0)
    person = [26, 25, 25, 35, 35, 79, 79, 72, 72, 62, 62, 107, 107, 87, 87, 89, 89]
    tolerances = [one / 1000 for one in person] if points == 17 else [1 / points] * points
    expected = []
    for number, (low, top, high, bottom) in enumerate(CORNERS):
        area = 0.53 * (high - low) * (bottom - top)
        similar = [
            math.exp(-((x - u) ** 2 + (y - v) ** 2) / (2 * (2 * tolerance) ** 2 * area))
            for (x, y, seen), (u, v, _), tolerance in zip(
                extra[number], moved[number], tolerances, strict=True
            )
            if seen > 0.5
        ]
        expected.append(sum(similar) / len(similar))
    judged = judge(left, right, 3 * points)
    assert judged is not None
    assert judged[1] == pytest.approx(np.mean(expected), abs=1e-4)


def test_a_lost_box_loses_its_mask() -> None:
    rng = np.random.default_rng(2)
    extra = rng.normal(size=(3, EXTRA)).astype(np.float32)
    prototypes = rng.normal(size=(1, EXTRA, GRID, GRID)).astype(np.float32)
    left = {"boxes": detector(extra, "columns"), "masks": prototypes}
    right = {"boxes": detector(extra, "columns", (0.9, 0.8, 0.1)), "masks": prototypes}
    assert judge(left, right, EXTRA) == ("masks", pytest.approx(4 / 5))


def test_without_any_box_nothing_is_judged() -> None:
    extra = np.ones((3, EXTRA), np.float32)
    empty = {
        "boxes": detector(extra, "columns", (0.1, 0.1, 0.1)),
        "masks": np.ones((1, EXTRA, GRID, GRID), np.float32),
    }
    assert judge(empty, empty, EXTRA) is None


def test_broken_masks_decide_beside_labelled_boxes() -> None:
    """Boxes that mAP calls right say nothing of their masks."""
    rng = np.random.default_rng(3)
    extra = rng.normal(size=(3, EXTRA)).astype(np.float32)
    prototypes = rng.normal(size=(1, EXTRA, GRID, GRID)).astype(np.float32)
    left = {"boxes": detector(extra, "columns"), "masks": prototypes}
    right = {"boxes": left["boxes"], "masks": -prototypes}
    truth = np.concatenate([np.ones((3, 1)), CORNERS], axis=1)
    task = Task("agreement", EXTRA)
    for _ in range(8):
        task.add(left, right, Sample(name="a", feeds=SAMPLE.feeds, boxes=truth))
    results = {entry.metric: entry for entry in task.results()}
    assert results["mAP50"].candidate == results["mAP50"].reference == pytest.approx(100)
    assert results["masks"].candidate == pytest.approx(0)
    compared = Comparison(
        reference="a", candidate="b", samples=8, meaningful=True, outputs=(), task=task.results()
    )
    assert [entry.metric for entry in decisive(compared)] == ["mAP50", "masks"]
    assert any("not with labels" in note for note in task.notes())


def is_inside(outline: np.ndarray, x: float, y: float) -> bool:
    """Crossings of a ray to the left, counted edge by edge."""
    crossings = 0
    for (a, b), (c, d) in zip(outline, [*outline[1:], outline[0]], strict=True):
        if (b <= y) != (d <= y) and a + (y - b) * (c - a) / (d - b) < x:
            crossings += 1
    return crossings % 2 == 1


def test_an_outline_fills_the_pixels_whose_centres_are_inside() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        outline = rng.uniform(-3, 19, (int(rng.integers(3, 9)), 2)).round(seed % 2)
        filled = fill_outline(outline, (GRID, GRID))
        for row in range(GRID):
            for column in range(GRID):
                assert filled[row, column] == is_inside(outline, column + 0.5, row + 0.5)
    square = np.array([[2, 3], [6, 3], [6, 9], [2, 9]], float)
    assert fill_outline(square, (GRID, GRID)).sum() == 24


def labelled(
    rng: np.random.Generator,
    points: list[np.ndarray],
    extra: int,
    rows: np.ndarray,
    further: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], Sample]:
    """Return the output of a detector that finds `CORNERS` with these values, and the picture with labels of the same boxes."""
    scores = tuple(rng.uniform(0.3, 0.9, 3))
    truth = np.concatenate([np.ones((3, 1)), CORNERS], axis=1)
    sample = Sample(name="a", feeds=SAMPLE.feeds, boxes=truth, points=tuple(points))
    return {"boxes": detector(rows.reshape(3, extra).astype(np.float32), "final", scores), **further}, sample


def test_masks_are_measured_with_labelled_outlines() -> None:
    rng = np.random.default_rng(4)
    task, pictures = Task("agreement", EXTRA), []
    for _ in range(8):
        prototypes = rng.normal(size=(1, EXTRA, GRID, GRID)).astype(np.float32)
        prototypes[0, 0] = 3.0
        rows = rng.normal(size=(3, EXTRA))
        rows[:, 0] += rng.uniform(0, 3)
        outlines = [
            np.array([[x, y], [u, y], [u, v], [(x + u) / 2, v - rng.uniform(0, 9)], [x, v]])
            for x, y, u, v in CORNERS
        ]
        output, sample = labelled(rng, outlines, EXTRA, rows, {"masks": prototypes})
        task.add(output, {**output, "masks": -prototypes}, sample)
        drawn = [
            {
                (row, column)
                for row in range(GRID)
                for column in range(GRID)
                if is_inside(outline * GRID / SIDE, column + 0.5, row + 0.5)
            }
            for outline in outlines
        ]
        masks = [mask_of(output["boxes"][0, 1 + k, 6:], prototypes, CORNERS[k]) for k in range(3)]
        overlaps = [[len(mask & true) / len(mask | true) for true in drawn] for mask in masks]
        pictures.append(
            Picture(list(map(float, output["boxes"][0, 1:4, 4])), [1] * 3, overlaps, [1] * 3, [False] * 3)
        )
    empty = Sample(name="empty", feeds=SAMPLE.feeds, boxes=np.zeros((0, 5)), points=())
    task.add(output, output, empty)
    pictures.append(Picture(pictures[-1].scores, [1] * 3, [[]] * 3, [], []))
    results = {entry.metric: entry for entry in task.results()}
    small, whole = plain(pictures)
    assert 5 < whole < small < 95
    assert results["mask mAP50"].reference == pytest.approx(small)
    assert results["mask mAP50-95"].reference == pytest.approx(whole)
    assert results["mask mAP50"].candidate < small
    assert results["mAP50"].candidate == results["mAP50"].reference > 80
    compared = Comparison(
        reference="a", candidate="b", samples=9, meaningful=True, outputs=(), task=task.results()
    )
    assert [entry.metric for entry in decisive(compared)] == ["mAP50", "mask mAP50"]
    assert not any("not with labels" in note for note in task.notes())


def test_keypoints_are_measured_with_labelled_ones_and_objects_without_any_are_ignored() -> None:
    rng = np.random.default_rng(5)
    count = 5
    task, pictures = Task("agreement", 3 * count), []
    for number in range(8):
        truth = rng.uniform(10, 50, (3, count, 3))
        truth[..., 2] = rng.integers(0, 3, (3, count))
        truth[number % 3, :, 2] *= number % 2
        rows = truth + rng.normal(0, 7, truth.shape)
        rows[..., 2] = rng.uniform(0, 1, (3, count))
        output, sample = labelled(rng, list(truth), 3 * count, rows, {})
        task.add(output, output, sample)
        overlaps = []
        for place in range(3):
            own = []
            for points, (low, top, high, bottom) in zip(truth, CORNERS, strict=True):
                area, total, seen = 0.53 * (high - low) * (bottom - top), 0.0, 0
                is_blind = not points[:, 2].any()
                for (x, y, visible), (u, v, _) in zip(points, rows[place], strict=True):
                    dx, dy = u - x, v - y
                    if is_blind:
                        dx = max(0.0, 2 * low - high - u) + max(0.0, u - 2 * high + low)
                        dy = max(0.0, 2 * top - bottom - v) + max(0.0, v - 2 * bottom + top)
                    if visible or is_blind:
                        total += math.exp(-(dx * dx + dy * dy) / (2 * (2 / count) ** 2 * area))
                        seen += 1
                own.append(total / seen)
            overlaps.append(own)
        ignored = [not points[:, 2].any() for points in truth]
        pictures.append(
            Picture(list(map(float, output["boxes"][0, 1:4, 4])), [1] * 3, overlaps, [1] * 3, ignored)
        )
    assert any(any(picture.ignored) for picture in pictures)
    results = {entry.metric: entry for entry in task.results()}
    small, whole = plain(pictures)
    assert 5 < whole < small < 100
    assert results["keypoint mAP50"].reference == pytest.approx(small)
    assert results["keypoint mAP50-95"].reference == pytest.approx(whole)


@pytest.mark.parametrize("damage", [lambda boxes: boxes * 0, lambda boxes: boxes + 2 * (np.arange(21) == 8)])
def test_a_candidate_without_boxes_or_with_damaged_visibility_counts(
    damage: Callable[[np.ndarray], np.ndarray],
) -> None:
    rng = np.random.default_rng(5)
    truth = rng.uniform(10, 50, (3, 5, 3))
    truth[..., 2] = 1
    output, sample = labelled(rng, list(truth), 15, truth, {})
    task = Task("agreement", 15)
    task.add(output, {"boxes": damage(output["boxes"])}, sample)
    assert "keypoint mAP50" in {entry.metric for entry in task.results()}


def test_labels_of_another_kind_than_the_model_give_no_figure() -> None:
    rng = np.random.default_rng(6)
    prototypes = {"masks": rng.normal(size=(1, EXTRA, GRID, GRID)).astype(np.float32)}
    keypoints, outlines = [rng.uniform(9, 50, (EXTRA // 2, size)) for size in (3, 2)]
    for points, further in ((keypoints, prototypes), (outlines, {})):
        task = Task("agreement", EXTRA)
        output, sample = labelled(rng, [points] * 3, EXTRA, rng.uniform(9, 50, (3, EXTRA)), further)
        task.add(output, output, sample)
        assert {entry.metric for entry in task.results()} & {"mask mAP50", "keypoint mAP50"} == set()


@pytest.mark.parametrize("layout", ["columns", "rows", "final"])
@pytest.mark.parametrize("classes", [1, 2])
def test_a_network_with_masks_is_told_how_its_boxes_are_read(layout: str, classes: int) -> None:
    """Its first output has the shape of a line of text."""
    extra = np.random.default_rng(3).normal(size=(3, EXTRA)).astype(np.float32)
    boxes = detector(extra, layout)
    if classes == 1 and layout != "final":
        boxes = np.delete(boxes, 4, axis=1 if layout == "columns" else 2)
    outputs = {"boxes": boxes, "masks": np.ones((1, EXTRA, GRID, GRID), np.float32)}
    told = Task("agreement")
    told.add(outputs, outputs, SAMPLE)
    (note,) = told.notes()
    assert f"compare.extra_columns={EXTRA} " in note
    assert "compare.task" not in note
    followed = Task("agreement", EXTRA)
    followed.add(outputs, outputs, SAMPLE)
    assert {entry.metric for entry in followed.results()} >= {"masks"}


def test_a_network_with_further_outputs_is_not_told_to_be_text() -> None:
    values = np.random.default_rng(3).normal(size=(1, 37, 200)).astype(np.float32)
    for further in ({}, {"other": values[..., :5]}):
        task = Task("agreement")
        task.add({"y": values, **further}, {"y": values, **further}, SAMPLE)
        assert ("compare.task=text" in task.notes()[0]) is (not further)
