"""The interval of a paired difference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.accuracy.intervals import Interval, paired_interval, ratio_interval


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_samples_have_no_interval(count: int) -> None:
    assert paired_interval(np.zeros(count)) is None


def test_samples_without_a_change_still_leave_room_for_one() -> None:
    interval = paired_interval(np.zeros(100))
    assert interval is not None
    assert interval.high == pytest.approx(0.0295, abs=1e-4)
    assert interval.low == -interval.high


def test_samples_that_all_lose_still_leave_room_for_one_that_does_not() -> None:
    interval = paired_interval(np.full(12, -1.0))
    assert interval is not None
    assert interval.low == -1.0
    assert interval.high == pytest.approx(-0.779, abs=1e-3)


def test_interval_matches_the_normal_approximation_for_many_samples() -> None:
    differences = np.random.default_rng(1).choice([-1.0, 0.0, 1.0], size=4000, p=[0.1, 0.85, 0.05])
    interval = paired_interval(differences)
    assert interval is not None
    reach = 1.96 * differences.std() / np.sqrt(len(differences))
    assert interval.low == pytest.approx(differences.mean() - reach, abs=0.15 * reach)
    assert interval.high == pytest.approx(differences.mean() + reach, abs=0.15 * reach)


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=2, max_size=60))
def test_interval_holds_the_mean_and_does_not_depend_on_order(differences: list[float]) -> None:
    interval = paired_interval(np.array(differences))
    shuffled = sorted(differences)
    assert interval is not None
    assert interval.low - 1e-9 <= np.mean(differences) <= interval.high + 1e-9
    assert paired_interval(np.array(shuffled)) == interval


def test_the_interval_of_a_ratio_covers_it_and_shrinks_with_samples() -> None:
    random = np.random.default_rng(4)
    widths = []
    for count in (10, 1000):
        signal, noise = random.uniform(1, 2, count), random.uniform(0.001, 0.02, count)
        found = ratio_interval(signal, noise)
        assert found is not None
        assert found.low < 10 * np.log10(signal.sum() / noise.sum()) < found.high
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 5


def test_equal_samples_have_one_ratio() -> None:
    found = ratio_interval(np.full(9, 100.0), np.full(9, 1.0))
    assert found == Interval(low=20.0, high=20.0)


@pytest.mark.parametrize(
    ("signal", "noise"),
    [([1.0], [1.0]), ([1.0, 1.0], [0.0, 0.0]), ([0.0, 0.0], [1.0, 1.0])],
    ids=["one sample", "no noise", "no signal"],
)
def test_what_has_no_ratio_has_no_interval(signal: list[float], noise: list[float]) -> None:
    assert ratio_interval(np.array(signal), np.array(noise)) is None
