"""Segmentations and lines of text are judged against the float model, without labels."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtool.accuracy.positions import judge_positions
from qdqtool.accuracy.task import Task
from qdqtool.core.protocols import Sample
from qdqtool.pipeline.search.subsets import SampleRun, TrialRunner

PICTURE = Sample(name="picture", feeds={"x": np.zeros((1, 3, 8, 8), np.float32)})
SENTENCE = Sample(name="sentence", feeds={"ids": np.zeros((1, 12), np.int64)})


def softmax(values: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def line(text: list[int], classes: int = 20, axis: int = 2) -> np.ndarray:
    """Return probabilities of one line; `text` has the class of each position."""
    scores = np.full((1, len(text), classes), -4.0)
    scores[0, np.arange(len(text)), text] = 4.0
    scores = scores.transpose(0, 1, 2) if axis == 2 else scores.transpose(0, 2, 1)
    return softmax(scores, axis).astype(np.float32)


def edit_distance(left: list[int], right: list[int]) -> int:
    rows = {(0, place): place for place in range(len(right) + 1)}
    for row, first in enumerate(left, start=1):
        rows[row, 0] = row
        for place, second in enumerate(right, start=1):
            rows[row, place] = min(
                rows[row - 1, place] + 1,
                rows[row, place - 1] + 1,
                rows[row - 1, place - 1] + (first != second),
            )
    return rows[len(left), len(right)]


def read(text: list[int], blank: int) -> list[int]:
    kept = [one for place, one in enumerate(text) if not place or one != text[place - 1]]
    return [one for one in kept if one != blank]


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("blank", [0, 19])
def test_lines_of_text_are_read_as_ctc_reads_them(blank: int, axis: int) -> None:
    draw = np.random.default_rng(7)
    for _ in range(40):
        texts = [
            [blank if draw.random() < 0.5 else int(draw.integers(1, 6)) for _ in range(30)] for _ in range(2)
        ]
        judged = judge_positions(*(line(text, axis=axis) for text in texts), PICTURE)
        left, right = (read(text, blank) for text in texts)
        assert judged is not None
        assert judged[0] == "characters"
        assert judged[1] == pytest.approx(1 - edit_distance(left, right) / max(len(left), len(right)))


def test_two_empty_lines_are_the_same_text() -> None:
    assert judge_positions(line([0] * 9), line([0] * 9), PICTURE) == ("characters", 1.0)


def test_token_numbers_and_few_classes_are_no_text() -> None:
    text = [0, 0, 0, 0, 3, 0, 0, 5]
    assert judge_positions(line(text), line(text), SENTENCE) == ("positions", 1.0)
    assert judge_positions(line(text, classes=9), line(text, classes=9), PICTURE) == ("positions", 1.0)


@pytest.mark.parametrize("axis", [1, 3])
def test_maps_of_probabilities_are_compared_pixel_by_pixel(axis: int) -> None:
    draw = np.random.default_rng(3)
    for _ in range(20):
        left = draw.normal(size=(1, 5, 6, 7))
        right = left + draw.normal(size=left.shape)
        share = float((left.argmax(axis=1) == right.argmax(axis=1)).mean())
        sides = [np.moveaxis(softmax(side, 1), 1, axis) for side in (left, right)]
        assert judge_positions(*sides, PICTURE) == ("pixels", share)
        logs = [np.log(side) for side in sides]
        assert judge_positions(*logs, PICTURE) == ("pixels", share)


def test_maps_of_class_numbers_are_compared() -> None:
    left = np.arange(64).reshape(1, 8, 8) % 5
    right = left.copy()
    right[0, 0] += 1
    assert judge_positions(left, right, PICTURE) == ("pixels", 7 / 8)


def test_logits_are_read_only_if_the_recipe_says_what_they_are() -> None:
    draw = np.random.default_rng(5)
    left = draw.normal(size=(1, 21, 6, 6))
    right = left + 0.3 * draw.normal(size=left.shape)
    assert judge_positions(left, right, PICTURE) is None
    share = float((left.argmax(axis=1) == right.argmax(axis=1)).mean())
    assert judge_positions(left, right, PICTURE, "segment") == ("pixels", share)
    text = draw.normal(size=(1, 12, 30))
    assert judge_positions(text, text, PICTURE) is None
    assert judge_positions(text, text, PICTURE, "text") == ("characters", 1.0)


def test_classes_of_tokens_are_compared_where_the_attention_mask_keeps_them() -> None:
    draw = np.random.default_rng(7)
    left = draw.normal(size=(1, 40, 9))
    right = left + draw.normal(size=left.shape)
    ids, mask = draw.integers(0, 9, (1, 40)), np.arange(40)[np.newaxis] < 25
    sample = Sample(name="a", feeds={"input_ids": ids, "attention_mask": mask.astype(np.int64)})
    share = float((left.argmax(axis=2) == right.argmax(axis=2))[mask].mean())
    assert 0 < share < 1
    assert judge_positions(left, right, sample, "tokens") == ("positions", share)
    assert judge_positions(softmax(left, 2), softmax(right, 2), sample) == ("positions", share)
    assert judge_positions(left, right, sample) is None


@pytest.mark.parametrize("is_logit", [False, True])
def test_a_map_of_one_object_is_compared_by_the_overlap(is_logit: bool) -> None:
    draw = np.random.default_rng(6)
    left, right = draw.uniform(size=(2, 1, 1, 9, 9))
    share = float(((left > 0.5) & (right > 0.5)).sum() / ((left > 0.5) | (right > 0.5)).sum())
    sides = [np.log(side / (1 - side)) if is_logit else side for side in (left, right)]
    assert judge_positions(*sides, PICTURE) is None
    assert judge_positions(*sides, PICTURE, "segment") == ("masks", share)
    nothing = np.zeros((1, 1, 9, 9))
    assert judge_positions(nothing, nothing, PICTURE, "segment") == ("masks", 1.0)


@pytest.mark.parametrize(
    "output",
    [
        np.zeros((1, 3, 8, 8)),
        np.full((1, 4, 5), np.nan),
        np.linspace(0, 1, 64).reshape(1, 1, 8, 8),
        np.full((1, 2, 2, 2), 0.5),
        np.zeros((1, 0, 4)),
        np.zeros((1, 10)),
    ],
    ids=["zeros", "NaN", "a depth map", "more than one axis sums to one", "empty", "a vector"],
)
def test_what_is_not_certain_is_not_judged(output: np.ndarray) -> None:
    assert judge_positions(output, output, PICTURE) is None
    assert judge_positions(output, output[..., :-1], PICTURE) is None


def test_the_report_and_the_search_for_float_nodes_judge_alike() -> None:
    """The limit of a drop and the report ask one function."""
    draw = np.random.default_rng(11)
    cases = {
        "agreement": softmax(draw.normal(size=(1, 6, 5, 5)), 1),
        "segment": draw.normal(size=(1, 6, 5, 5)),
        "text": draw.normal(size=(1, 9, 30)),
        "tokens": draw.normal(size=(1, 9, 5)),
    }
    for kind, left in cases.items():
        right = left + 0.2 * draw.normal(size=left.shape) * left.std()
        task = Task(kind)
        task.add({"y": left}, {"y": right}, PICTURE)
        judge = TrialRunner.__new__(TrialRunner)
        judge._kind, judge._extra = kind, 0
        outcome = judge._judge_outcome(
            SampleRun(noise=(0.0,), signal=(1.0,)), "agreement", ({"y": left}, {"y": right}), PICTURE
        )
        if task.results():
            assert outcome.metric == task.results()[0].metric
            assert outcome.hits == (1.0, pytest.approx(task.results()[0].candidate / 100))
        else:
            assert outcome.hits is None


def test_class_numbers_of_a_fixed_batch_are_one_answer_for_each_sample() -> None:
    task = Task("classify")
    for number in (7, 3):
        sample = Sample(name="s", feeds={"x": np.zeros((4, 2), np.float32)}, label=7)
        task.add({"y": np.full(4, 7)}, {"y": np.full(4, number)}, sample)
    (result,) = task.results()
    assert (result.metric, result.reference, result.candidate) == ("top1", 100, 50)


def test_values_of_a_fixed_batch_are_not_scores_of_classes() -> None:
    task = Task("agreement")
    sample = Sample(name="s", feeds={"x": np.zeros((8, 2), np.float32)})
    task.add({"y": np.full(8, 0.9, np.float32)}, {"y": np.full(8, 0.1, np.float32)}, sample)
    assert task.results() == ()
