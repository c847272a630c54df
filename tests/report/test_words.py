"""Figures as people write them."""

from __future__ import annotations

import pytest

from qdqtool.core.comparison import TaskAccuracy
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
    [(-2.0, -0.5, "a real loss"), (-1.0, 1.0, "within noise"), (0.5, 1.0, "a real gain"), (None, None, "")],
)
def test_a_difference_is_real_when_its_interval_leaves_zero_out(
    low: float | None, high: float | None, text: str
) -> None:
    entry = TaskAccuracy(metric="top1", unit="%", reference=1.0, candidate=1.0, samples=9, low=low, high=high)
    assert words.noise(entry) == text


def test_no_difference_has_no_sign() -> None:
    entry = TaskAccuracy(metric="top1", unit="%", reference=90.0, candidate=90.0, samples=9)
    assert words.task(entry) == "top-1 90.0 % -> 90.0 % (0.0 points), 9 samples"
