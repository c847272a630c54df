"""Laws of histograms: they depend on nothing but the set of values."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators.histogram import Histogram, Tally, coarsen, empty, histogram_of, merge, scratch
from calibrators.kernels import BINS

FINITE = arrays(
    np.float32, st.integers(0, 40), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
)
ANY = arrays(np.float32, st.integers(0, 40), elements=st.floats(width=32))


@given(ANY, ANY)
def test_merging_is_commutative(first: np.ndarray, second: np.ndarray) -> None:
    a, b = histogram_of(first), histogram_of(second)
    assert merge(a, b) == merge(b, a)


@given(ANY, ANY, ANY)
def test_merging_is_associative(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> None:
    a, b, c = histogram_of(first), histogram_of(second), histogram_of(third)
    assert merge(merge(a, b), c) == merge(a, merge(b, c))


@given(ANY)
def test_the_empty_histogram_is_neutral(values: np.ndarray) -> None:
    found = histogram_of(values)
    assert merge(found, empty()) == found == merge(empty(), found)


@given(ANY, st.integers(0, 40), st.randoms())
def test_neither_batch_size_nor_order_changes_a_bit(values: np.ndarray, cut: int, random: object) -> None:
    whole = histogram_of(values)
    order = list(range(values.size))
    random.shuffle(order)  # type: ignore[attr-defined]
    tally, lanes = Tally(), scratch()
    tally.add(values[order][:cut], lanes)
    tally.add(values[order][cut:], lanes)
    assert tally.histogram() == whole
    assert merge(histogram_of(values[:cut]), histogram_of(values[cut:])) == whole


@given(FINITE, st.integers(-20, 20))
def test_scaling_the_data_by_a_power_of_two_scales_the_range_and_nothing_else(
    values: np.ndarray, power: int
) -> None:
    values = np.where(np.abs(values) > 2.0**40, 1.0, np.where(np.abs(values) < 2.0**-40, 0.0, values))
    small = histogram_of(values)
    large = histogram_of(values * np.float32(2.0**power))
    assert np.array_equal(small.counts, large.counts)
    assert large.amax == math.ldexp(small.amax, power)
    if small.exponent is not None:
        assert large.exponent == small.exponent + power


@given(FINITE)
def test_extremes_are_exact_and_every_value_is_counted_in_its_bin(values: np.ndarray) -> None:
    found = histogram_of(values)
    assert found.total == values.size == int(found.counts.sum())
    if values.size:
        assert (found.low, found.high) == (float(values.min()), float(values.max()))
    if found.exponent is not None and found.exponent > -100:
        assert BINS // 2 <= found.used.size <= BINS
        bins = np.floor(np.abs(values.astype(np.float64)) / found.width).astype(np.int64)
        assert np.array_equal(np.bincount(bins, minlength=BINS), found.counts)


@given(FINITE, st.integers(1, 4096))
def test_coarsening_keeps_the_count_and_the_limit(values: np.ndarray, most: int) -> None:
    found = histogram_of(values)
    counts, width = coarsen(found, most)
    assert counts.size <= most
    assert counts.sum() == found.total
    assert counts.size * width >= found.amax


def test_nothing_seen_is_an_empty_histogram() -> None:
    assert histogram_of(np.zeros(0, np.float32)) == empty()


def test_zeros_have_no_range_until_something_else_comes() -> None:
    zeros = histogram_of(np.zeros(7, np.float32))
    assert (zeros.exponent, zeros.width, zeros.amax, zeros.total) == (None, 0.0, 0.0, 7)
    grown = merge(zeros, histogram_of(np.array([3.0], np.float32)))
    assert (grown.exponent, int(grown.counts[0]), grown.total) == (2, 7, 8)


def test_nan_and_inf_are_counted_apart() -> None:
    values = np.array([1.0, np.nan, -np.inf, np.inf, -2.0], np.float32)
    found = histogram_of(values)
    assert (found.nan, found.inf, found.total, found.low, found.high) == (1, 2, 2, -2.0, 1.0)


def test_large_arrays_take_the_fast_path_and_agree_with_numpy() -> None:
    values = np.random.default_rng(3).standard_normal(100_003).astype(np.float32) * 5
    values[77_777] = np.nan
    found = histogram_of(values)
    good = values[np.isfinite(values)]
    wanted = np.bincount((np.abs(good) / np.float32(found.width)).astype(np.int64), minlength=BINS)
    assert np.array_equal(found.counts, wanted)
    assert (found.nan, found.total) == (1, 100_002)


def test_a_growing_range_in_the_middle_of_an_array_is_exact() -> None:
    values = np.concatenate([np.full(50_000, 0.3), np.full(50_000, 700.0)]).astype(np.float32)
    assert histogram_of(values) == histogram_of(values[::-1])


def test_other_types_and_shapes_are_read_as_float32() -> None:
    values = np.arange(24).reshape(2, 3, 4)
    assert histogram_of(values.astype(np.float16).transpose(2, 0, 1)) == histogram_of(
        values.astype(np.float64)
    )


def test_extremes_alone_have_no_bins() -> None:
    tally = Tally()
    tally.add_extremes(np.array([-4.0, 1.0, np.inf], np.float32))
    found = tally.histogram()
    assert (found.low, found.high, found.total, found.inf, found.has_bins) == (-4.0, 1.0, 2, 1, False)
    assert isinstance(found, Histogram)


@settings(max_examples=20)
@given(st.integers(0, 600_000), st.integers(0, 600_000))
def test_more_equal_values_than_a_counter_holds_are_all_counted(ones: int, zeros: int) -> None:
    found = histogram_of(np.repeat(np.float32([1, 0]), [ones, zeros]))
    assert found.total == ones + zeros
    assert sorted(found.counts[found.counts > 0]) == sorted(count for count in (ones, zeros) if count)
