"""One contract for every calibrator on the shelf, and what each of them promises."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calibrators
from calibrators.entropy import best_threshold
from calibrators.error import CalibrationDataError
from calibrators.histogram import Histogram, coarsened, empty, histogram_of
from calibrators.legacy import legacy
from calibrators.mse import mse
from calibrators.noise import noise_of
from calibrators.percentile import percentile
from qdqtool.plugins import Registry

SHELF = Registry(package="calibrators", besides=calibrators.NOT_PLUGINS)
NAMES = SHELF.names()
RANDOM = np.random.default_rng(11)
SHAPES = {
    "bell": RANDOM.standard_normal(20_000),
    "half-bell": np.maximum(RANDOM.standard_normal(20_000), 0),
    "heavy-tailed": RANDOM.standard_t(2, 20_000),
    "even": RANDOM.random(20_000),
    "pixels": RANDOM.integers(0, 256, 20_000) / 255,
    "constant": np.full(1000, -3.5),
    "single": np.array([1e-3]),
}
HISTOGRAMS = {name: histogram_of(values) for name, values in SHAPES.items()}


def test_the_shelf_holds_the_promised_calibrators() -> None:
    assert {"max", "entropy", "legacy", "percentile", "mse", "best"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_calibrator_has_a_manual(name: str) -> None:
    assert len(SHELF.manual(name)) > 60


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", HISTOGRAMS)
def test_a_range_is_positive_and_never_above_the_maximum(name: str, shape: str) -> None:
    found = SHELF.load(name)(HISTOGRAMS[shape])
    assert 0 < found.amax <= HISTOGRAMS[shape].amax
    assert found.method in NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nothing", [empty(), histogram_of(np.zeros(9))], ids=["no data", "zeros only"])
def test_without_anything_but_zeros_the_range_is_zero(name: str, nothing: Histogram) -> None:
    assert SHELF.load(name)(nothing).amax == 0


@pytest.mark.parametrize("name", NAMES)
@given(power=st.integers(-8, 8))
def test_scaled_data_have_a_scaled_range(name: str, power: int) -> None:
    plugin = SHELF.load(name)
    values = SHAPES["heavy-tailed"].astype(np.float32)
    scaled = plugin(histogram_of(values * np.float32(2.0**power)))
    assert scaled.amax == plugin(histogram_of(values)).amax * 2.0**power


@pytest.mark.parametrize("name", NAMES)
def test_a_calibrator_is_a_pure_function(name: str) -> None:
    histogram = HISTOGRAMS["bell"]
    before = histogram.counts.copy()
    assert SHELF.load(name)(histogram) == SHELF.load(name)(histogram)
    assert np.array_equal(histogram.counts, before)


def test_only_plugins_are_on_the_shelf() -> None:
    for name in calibrators.NOT_PLUGINS:
        assert not hasattr(importlib.import_module(f"calibrators.{name}"), "PLUGIN")
    for name in NAMES:
        assert inspect.isfunction(SHELF.load(name))


def divergence(counts: np.ndarray, kept: int) -> float:
    """The definition, step by step: clip, squeeze into 128 levels, spread out, compare."""
    inside = counts[:kept].astype(float)
    clipped = inside.copy()
    clipped[-1] += counts[kept:].sum()
    level = np.digitize(np.arange(kept), np.linspace(0, kept, 129)) - 1
    filled = inside > 0
    mass = np.bincount(level, weights=inside, minlength=128)
    bins = np.bincount(level, weights=filled, minlength=128)
    spread = np.where(filled, (mass / np.maximum(bins, 1))[level], 0)
    if np.any((clipped > 0) & (spread == 0)):
        return np.inf
    p, q = clipped / clipped.sum(), spread / spread.sum()
    return float(np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0])))


@pytest.mark.parametrize("shape", ["bell", "half-bell", "heavy-tailed", "even"])
def test_the_entropy_search_finds_the_minimum_of_the_definition(shape: str) -> None:
    counts, _ = coarsened(HISTOGRAMS[shape], 2048)
    counts = counts[::4].copy()
    counts[0] = counts[1]
    found = int(best_threshold(counts))
    least = min(divergence(counts, kept) for kept in range(128, counts.size + 1))
    assert divergence(counts, found) == pytest.approx(least, rel=1e-9, abs=1e-12)


def test_entropy_cuts_off_a_lone_outlier() -> None:
    values = np.append(RANDOM.standard_normal(50_000), 60.0)
    assert SHELF.load("entropy")(histogram_of(values)).amax < 10


def test_percentile_counts_from_below() -> None:
    values = np.arange(1, 10_001) / 10_000
    assert percentile(histogram_of(values), 50).amax == pytest.approx(0.5, abs=1e-3)
    assert percentile(histogram_of(values), 100).amax == np.float32(1.0)


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_an_impossible_percentile_is_refused(percent: float) -> None:
    with pytest.raises(CalibrationDataError, match="outside"):
        percentile(HISTOGRAMS["bell"], percent)


def test_legacy_is_never_below_the_percentile() -> None:
    for histogram in HISTOGRAMS.values():
        assert legacy(histogram, 0.999).amax >= percentile(histogram, 99.9).amax


@pytest.mark.parametrize("quantile", [0, 1.5])
def test_an_impossible_quantile_is_refused(quantile: float) -> None:
    with pytest.raises(CalibrationDataError, match="outside"):
        legacy(HISTOGRAMS["bell"], quantile)


def squared_error(values: np.ndarray, amax: float) -> float:
    step = amax / 127
    return float(np.mean((np.abs(values) - np.minimum(np.rint(np.abs(values) / step), 127) * step) ** 2))


@pytest.mark.parametrize("shape", ["bell", "heavy-tailed", "even"])
def test_the_noise_read_off_a_histogram_is_the_noise_of_the_values(shape: str) -> None:
    for share in (0.1, 0.5, 1.0):
        amax = HISTOGRAMS[shape].amax * share
        assert noise_of(HISTOGRAMS[shape])(amax) == pytest.approx(
            squared_error(SHAPES[shape], amax), rel=0.02
        )


@pytest.mark.parametrize("shape", ["bell", "half-bell", "heavy-tailed"])
def test_mse_is_close_to_the_best_of_a_thousand_thresholds(shape: str) -> None:
    histogram = HISTOGRAMS[shape]
    least = min(squared_error(SHAPES[shape], histogram.amax * share / 1000) for share in range(2, 1001))
    assert squared_error(SHAPES[shape], mse(histogram).amax) <= least * 1.01


def test_best_is_at_least_as_quiet_as_each_candidate() -> None:
    for histogram in HISTOGRAMS.values():
        noises = [
            noise_of(histogram)(SHELF.load(name)(histogram).amax)
            for name in ("max", "percentile", "entropy", "mse")
        ]
        assert noise_of(histogram)(SHELF.load("best")(histogram).amax) == min(noises)
