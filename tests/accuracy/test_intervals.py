"""The interval of a paired difference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.core.evidence import (
    Interval,
    largest_loss,
    largest_mean,
    paired_interval,
    ratio_interval,
)


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


def test_draws_with_noise_but_no_signal_have_the_smallest_ratio() -> None:
    signal, noise = np.repeat([0.0, 1.0], [6, 2]), np.repeat([0.3, 0.1], [6, 2])
    found = ratio_interval(signal, noise)
    assert found is not None
    # one sample with signal among eight
    assert found.low == pytest.approx(10 * np.log10(1 / 2.2))
    assert found.high < 10 * np.log10(6 / 1.2)


@pytest.mark.parametrize("lost", [0.0, 0.002, 0.02, 0.1])
@pytest.mark.parametrize("gained", [0.0, 0.02])
@pytest.mark.parametrize("count", [30, 200, 1000])
def test_samples_lose_no_more_than_is_told_of_them_as_often_as_asked(
    lost: float, gained: float, count: int
) -> None:
    rng = np.random.default_rng(1)
    draws = rng.multinomial(count, [lost, gained, 1 - lost - gained], size=400)
    told = [largest_loss(np.repeat([1.0, -1.0, 0.0], draw), 0.9) >= lost - gained for draw in draws]
    assert np.mean(told) >= 0.88


@pytest.mark.parametrize("spread", [0.3, 0.8])
@pytest.mark.parametrize(
    "count", [4, 16, *(pytest.param(count, marks=pytest.mark.slow) for count in (64, 200))]
)
def test_noise_is_no_louder_than_is_told_of_it_nearly_as_often_as_asked(spread: float, count: int) -> None:
    rng = np.random.default_rng(2)
    true = np.exp(spread**2 / 2)
    told = [largest_mean(np.exp(spread * rng.standard_normal(count)), 0.9) >= true for _ in range(60)]
    assert np.mean(told) >= 0.8


def test_a_few_samples_that_hold_most_of_the_noise_say_that_others_may_be_louder() -> None:
    values = np.full(200, 1.0)
    values[:3] = 50.0
    even = np.random.default_rng(3).standard_normal(200)
    even = values.mean() + values.std() * (even - even.mean()) / even.std()
    assert largest_mean(values, 0.9) > 1.05 * largest_mean(even, 0.9)


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=40), st.floats(0.5, 0.99))
def test_what_may_be_lost_is_more_than_was_and_falls_with_more_of_the_same_samples(
    losses: list[float], confidence: float
) -> None:
    values = np.array(losses)
    assert largest_loss(values, confidence) > values.mean()
    assert largest_loss(np.tile(values, 4), confidence) < largest_loss(values, confidence)
    assert largest_loss(values, 0.995) > largest_loss(values, confidence)


@given(st.lists(st.floats(0, 10), min_size=2, max_size=30), st.floats(0.5, 0.99))
def test_the_largest_mean_is_no_smaller_than_the_mean(levels: list[float], confidence: float) -> None:
    found = largest_mean(np.array(levels), confidence)
    assert found is not None
    assert found >= np.mean(levels) * (1 - 1e-9)


def test_one_value_tells_nothing_of_others() -> None:
    assert largest_mean(np.ones(1), 0.9) is None
