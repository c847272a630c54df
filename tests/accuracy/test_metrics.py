"""Each metric against its definition, and the contract that all of them keep."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.accuracy.metric import METRICS, Distance, Hit, Reading

DISTANCES = [name for name in METRICS.names() if isinstance(METRICS.load(name), Distance)]
HITS = [name for name in METRICS.names() if isinstance(METRICS.load(name), Hit)]


def read(name: str, *pairs: tuple[object, object]) -> Reading:
    meter = METRICS.load(name).start()
    for reference, candidate in pairs:
        meter.add(np.array(reference, dtype=np.float64), np.array(candidate, dtype=np.float64))
    return meter.reading()


@pytest.mark.parametrize("name", METRICS.names())
def test_a_metric_is_a_distance_or_a_hit_and_has_a_manual(name: str) -> None:
    assert isinstance(METRICS.load(name), (Distance, Hit)), "PLUGIN is neither a Distance nor a Hit"
    assert METRICS.manual(name)


@pytest.mark.parametrize("name", DISTANCES)
def test_without_samples_a_distance_is_undefined_and_says_so(name: str) -> None:
    reading = read(name)
    assert reading.value is None
    assert reading.note


@pytest.mark.parametrize("name", DISTANCES)
def test_equal_tensors_have_the_value_that_the_metric_calls_perfect_or_a_reason(name: str) -> None:
    reading = read(name, ([[1.0, 2.0, -3.0]], [[1.0, 2.0, -3.0]]))
    perfect = METRICS.load(name).perfect
    assert reading.value == (None if perfect is None else pytest.approx(perfect, abs=1e-12))
    assert bool(reading.note) == (perfect is None)


@pytest.mark.parametrize("name", DISTANCES)
def test_other_tensors_are_not_better_than_perfect(name: str) -> None:
    metric = METRICS.load(name)
    if metric.perfect is not None:
        found = read(name, ([[1.0, 2.0, -3.0]], [[1.0, 1.0, -2.0]])).value
        assert found is not None
        assert found < metric.perfect if metric.better == "higher" else found > metric.perfect


@pytest.mark.parametrize("name", DISTANCES)
def test_a_silent_reference_gives_a_number_or_a_reason(name: str) -> None:
    reading = read(name, ([[0.0, 0.0]], [[0.0, 1.0]]))
    assert (reading.value is None) == bool(reading.note)
    assert reading.value is None or math.isfinite(reading.value)


@pytest.mark.parametrize("name", DISTANCES)
@given(seed=st.integers(0, 999), count=st.integers(2, 8), split=st.integers(1, 7))
@settings(max_examples=20)
def test_samples_may_come_in_any_order(name: str, seed: int, count: int, split: int) -> None:
    values = np.random.default_rng(seed).normal(size=(count, 2, 1, 5))
    pairs = [(value[0], value[1]) for value in values]
    turned = pairs[split:] + pairs[:split]
    assert read(name, *pairs).value == pytest.approx(read(name, *turned).value)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cosine", 4 / (2 * math.sqrt(5))),
        ("sqnr_db", 10 * math.log10(4 / 1)),
        ("psnr", 10 * math.log10(4 / 0.5)),
        ("max_abs", 1.0),
        ("mean_abs", 0.5),
        ("relative", 50.0),
    ],
)
def test_distance_follows_its_definition(name: str, expected: float) -> None:
    assert read(name, ([0.0, 2.0], [1.0, 2.0])).value == pytest.approx(expected)


def test_kl_takes_probabilities_as_they_are_and_softmaxes_scores() -> None:
    p, q = np.array([[0.25, 0.75]]), np.array([[0.5, 0.5]])
    expected = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    assert read("kl", (p, q)).value == pytest.approx(expected)
    assert read("kl", (np.log(p) + 3, np.log(q) - 2)).value == pytest.approx(expected)


def test_kl_reads_classes_from_axis_one_of_a_one_by_one_map() -> None:
    p, q = np.array([0.25, 0.75]).reshape(1, 2, 1, 1), np.array([0.5, 0.5]).reshape(1, 2, 1, 1)
    assert read("kl", (p, q)).value == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5))


@pytest.mark.parametrize(("name", "truth", "expected"), [
    ("top1", 3, 1.0),
    ("top1", 2, 0.0),
    ("top5", 2, 1.0),
    ("top5", 0, 0.0),
    ("agreement", 3, 1.0),
])  # fmt: skip
def test_hit_counts_by_rank(name: str, truth: int, expected: float) -> None:
    scores = np.array([0.0, 2.0, 3.0, 9.0, 4.0, 5.0])
    assert METRICS.load(name).hit(scores, truth) == expected


def test_of_equal_best_scores_the_first_class_wins_as_argmax_says() -> None:
    scores = np.array([1.0, 7.0, 7.0])
    assert [METRICS.load("top1").hit(scores, truth) for truth in range(3)] == [0.0, 1.0, 0.0]


def test_audio_may_be_louder_as_a_whole_and_shifted_by_a_constant() -> None:
    reference = np.array([[1.0, -1.0, 2.0, -2.0]])
    noise = np.array([[1.0, 1.0, -1.0, -1.0]])
    expected = 10 * math.log10(10.0 / 4.0)
    assert read("si_sdr", (reference, reference + noise)).value == pytest.approx(expected)
    assert read("si_sdr", (reference, 7 * (reference + noise) + 3)).value == pytest.approx(expected)


def boxes(*rows: tuple[float, ...]) -> np.ndarray:
    """Rows of x, y, width, height, objectness and two class scores."""
    return np.array([rows])


CAT, DOG = (50, 50, 20, 20, 0.9, 0.9, 0.1), (150, 50, 30, 30, 0.9, 0.1, 0.8)
NOISE = (10, 10, 5, 5, 0.1, 0.5, 0.5)


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (boxes(CAT, DOG, NOISE), 100.0),
        (boxes(DOG, NOISE, CAT), 100.0),
        (boxes((52, 50, 20, 20, 0.9, 0.9, 0.1), DOG, CAT), 100.0),
        (boxes(CAT, NOISE, NOISE), 100 * 2 / 3),
        (boxes((*CAT[:5], 0.1, 0.9), DOG, NOISE), 50.0),
        (boxes((90, 50, 20, 20, 0.9, 0.9, 0.1), DOG, NOISE), 50.0),
    ],
    ids=[
        "the same",
        "other order",
        "a duplicate is suppressed",
        "one lost",
        "another class",
        "another place",
    ],
)
def test_boxes_agree_by_class_and_overlap(candidate: np.ndarray, expected: float) -> None:
    assert read("boxes", (boxes(CAT, DOG, NOISE), candidate)).value == pytest.approx(expected)


def test_boxes_that_were_exported_without_decoding_are_decoded() -> None:
    raw = np.zeros((1, 21 * 4 * 4, 7))
    raw[0, :, 2:4] = -1.0
    raw[0, 7] = (0.5, 0.5, 1.0, 1.0, 0.9, 0.9, 0.1)
    moved = np.roll(raw, 40, axis=1)
    assert read("boxes", (raw, raw)).value == 100.0
    assert read("boxes", (raw, moved)).value == 0.0


def test_boxes_of_an_image_without_objects_are_undefined() -> None:
    reading = read("boxes", (boxes(NOISE), boxes(NOISE)))
    assert reading.value is None
    assert "neither model" in reading.note
