"""Figures as people write them."""

from __future__ import annotations

from dataclasses import asdict, fields

import pytest

from qdqtool.core.comparison import TaskAccuracy
from qdqtool.core.sensitivity import FloatLimit, FloatSet
from qdqtool.report import words


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (15_360, "15.0 KiB"),
        (1_048_575, "1024 KiB"),
        (26_800_000, "25.6 MiB"),
        (5 << 40, "5120 GiB"),
    ],
)
def test_sizes_have_three_digits(count: int | None, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "0 %"),
        (0, 9, "0 %"),
        (1, 1000, "under 1 %"),
        (24, 25, "96 %"),
        (999, 1000, "99 %"),
        (7, 7, "100 %"),
    ],
)
def test_only_all_is_100_percent_and_only_nothing_is_0(part: int, whole: int, text: str) -> None:
    assert words.percent(part, whole) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (-2.0, -0.5, "a significant loss"),
        (-1.0, 1.0, "within noise"),
        (0.5, 1.0, "a significant gain"),
        (None, None, ""),
    ],
)
def test_a_difference_is_real_when_its_interval_leaves_zero_out(
    low: float | None, high: float | None, text: str
) -> None:
    entry = TaskAccuracy(metric="top1", unit="%", reference=1.0, candidate=1.0, samples=9, low=low, high=high)
    assert words.noise(entry) == text


def test_no_difference_has_no_sign() -> None:
    entry = TaskAccuracy(metric="top1", unit="%", reference=90.0, candidate=90.0, samples=9)
    assert words.task(entry) == "top-1 90.0 % -> 90.0 % (0.0 points), 9 samples"


def _set(kept: int, candidate: float, low: float | None) -> dict:
    task = TaskAccuracy(
        metric="top1",
        unit="%",
        reference=60.0,
        candidate=candidate,
        samples=100,
        low=low,
        high=None if low is None else 2.0,
    )
    found = FloatSet(
        kept=tuple(f"n{number}" for number in range(kept)),
        sqnr_db=20.0,
        task=task,
        int8_nodes=1,
        total_nodes=9,
    )
    return asdict(found)


def _limit(most: float, samples: int, **more: object) -> str:
    found = FloatLimit(
        max_drop=most, min_sqnr=None, samples=samples, whole=None, path=(), chosen=None, evaluations=1
    )
    data = {**_values(found), "whole": _set(0, 50.0, -12.0), **more}
    return " | ".join(text for _, text in words.limit_rows(data))


def _values(found: FloatLimit) -> dict:
    return {field.name: getattr(found, field.name) for field in fields(found)}


@pytest.mark.parametrize(
    ("low", "samples", "told"),
    [
        (-3.2, 100, "95 % interval of the change -3.2 to +2.0 points: other samples may lose more"),
        (-0.4, 100, "one sample is 1 points: other samples may lose more"),
        (None, 16, "one sample is 6.25 points: other samples may lose more"),
    ],
)
def test_a_kept_drop_says_what_the_samples_do_not_prove(low: float | None, samples: int, told: str) -> None:
    assert told in _limit(0.5, samples, chosen=_set(2, 60.0, low))
    assert told in _limit(0.5, samples, chosen=_set(0, 60.0, low), whole=_set(0, 60.0, low))


def test_a_drop_that_the_samples_prove_is_told_without_doubt() -> None:
    assert "other samples" not in _limit(0.5, 1000, chosen=_set(2, 60.0, -0.4))


@pytest.mark.parametrize(
    ("worst", "enough", "told"),
    [
        (0.43, 900, "other samples lose at most 0.43 points (90 % confidence)"),
        (1.64, 2311, "may lose up to 1.6 points (90 % confidence): for 0.5 about 2,400 samples"),
        (1.64, None, "the loss on these samples already reaches the limit, so more samples cannot help"),
    ],
)
def test_a_kept_drop_says_what_others_lose_and_how_many_would_tell(
    worst: float, enough: int | None, told: str
) -> None:
    chosen = {**_set(2, 60.0, -3.0), "worst_drop": worst}
    assert told in _limit(0.5, 300, chosen=chosen, confidence=0.9, enough=enough)


def test_samples_that_calibrated_are_said_to_tell_little_of_others() -> None:
    chosen = {**_set(2, 60.0, -0.4), "worst_drop": 0.4}
    told = _limit(0.5, 300, chosen=chosen, confidence=0.9, calibrated=True)
    assert "--eval-samples" in told
    assert "confidence" not in told


def test_a_limit_that_is_missed_says_by_what() -> None:
    everything = _limit(0.5, 100, path=(_set(9, 58.0, -3.0),))
    assert everything.startswith(
        "at most 0.5 points lost: not met even with all 9 nodes float (20.0 dB, top-1 58.00 %)"
    )
    built = _limit(0.5, 100, path=(_set(9, 60.0, 0.0),), built=_set(2, 59.0, -3.0))
    assert built.startswith("at most 0.5 points lost: not met by the built model with 2 nodes float (20.0 dB")
