"""One contract for every calibrator, with every number format, and what each of them promises."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import calibrators
from calibrators.calibrator import CalibrationDataError, Grid, grid_of
from calibrators.histogram import Histogram, coarsen, empty, histogram_of
from calibrators.methods.entropy import entropy
from calibrators.methods.legacy import legacy
from calibrators.methods.mse import mse
from calibrators.methods.percentile import percentile
from calibrators.noise import noise_of
from qdqtool.core.calibration import CALIBRATORS
from qdqtool.core.grids import grid_for
from qdqtool.core.tensors import FORMATS, FP8, INT8

NAMES = CALIBRATORS.names()
GRID = grid_for(INT8)
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


def test_the_promised_calibrators_are_there() -> None:
    assert {"max", "entropy", "legacy", "percentile", "mse", "best"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_calibrator_has_a_manual(name: str) -> None:
    assert len(CALIBRATORS.manual(name)) > 60


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", HISTOGRAMS)
@pytest.mark.parametrize("form", FORMATS)
def test_a_range_is_positive_and_never_above_the_maximum(name: str, shape: str, form: str) -> None:
    found = CALIBRATORS.load(name)(HISTOGRAMS[shape], grid_for(FORMATS[form]))
    assert 0 < found.amax <= HISTOGRAMS[shape].amax
    assert found.method in NAMES


def test_an_unknown_calibrator_is_told_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"unknown calibrator 'entrop': choose one of .*entropy"):
        calibrators.load("entrop")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("nothing", [empty(), histogram_of(np.zeros(9))], ids=["no data", "zeros only"])
def test_without_anything_but_zeros_the_range_is_zero(name: str, nothing: Histogram) -> None:
    assert CALIBRATORS.load(name)(nothing, GRID).amax == 0


@pytest.mark.parametrize("name", NAMES)
@given(power=st.integers(-8, 8))
def test_scaled_data_have_a_scaled_range(name: str, power: int) -> None:
    plugin = CALIBRATORS.load(name)
    values = SHAPES["heavy-tailed"].astype(np.float32)
    scaled = plugin(histogram_of(values * np.float32(2.0**power)), GRID)
    assert scaled.amax == plugin(histogram_of(values), GRID).amax * 2.0**power


@pytest.mark.parametrize("name", NAMES)
def test_a_calibrator_is_a_pure_function(name: str) -> None:
    histogram = HISTOGRAMS["bell"]
    before = histogram.counts.copy()
    assert CALIBRATORS.load(name)(histogram, GRID) == CALIBRATORS.load(name)(histogram, GRID)
    assert np.array_equal(histogram.counts, before)


@pytest.mark.parametrize("name", NAMES)
def test_a_calibrator_says_what_it_needs(name: str) -> None:
    plugin = CALIBRATORS.load(name)
    assert isinstance(plugin, calibrators.Calibrator)
    if not plugin.needs_bins:  # the extremes are enough, so that counts do not matter
        bare = replace(HISTOGRAMS["bell"], counts=np.zeros_like(HISTOGRAMS["bell"].counts))
        assert not bare.has_bins
        assert plugin(bare, GRID) == plugin(HISTOGRAMS["bell"], GRID)


def test_comparisons_try_the_calibrators_that_look_for_a_range_themselves() -> None:
    competing = {name for name in NAMES if CALIBRATORS.load(name).competes}
    assert {"max", "percentile", "entropy", "mse"} <= competing
    assert competing.isdisjoint({"best", "legacy"})  # hands over to others; repeats an old release


def test_public_names_are_there_and_nothing_else_is() -> None:
    assert calibrators.names() == NAMES
    for name in calibrators.__all__:
        assert getattr(calibrators, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'tally'"):
        calibrators.tally  # noqa: B018 -- asking for it is the test


def test_a_helper_beside_the_calibrators_is_never_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mathx.py").write_text("raise RuntimeError('imported')")
    monkeypatch.setattr(calibrators, "__path__", [*calibrators.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    assert "mathx" in {module.name for module in pkgutil.iter_modules(calibrators.__path__)}
    assert calibrators.names() == CALIBRATORS.names() == NAMES
    assert CALIBRATORS.usable() == NAMES
    assert calibrators.load("best")(HISTOGRAMS["bell"], GRID).amax > 0


def test_a_file_beside_the_methods_becomes_a_calibrator_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half.py").write_text(
        '"""Half the maximum."""\n'
        "from calibrators import Calibrator, Range\n"
        "PLUGIN = Calibrator(choose=lambda histogram, grid: Range(amax=histogram.amax / 2, method='half'))\n"
    )
    methods = importlib.import_module("calibrators.methods")
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    assert "half" in calibrators.names()
    assert "half" in CALIBRATORS.usable()
    assert CALIBRATORS.manual("half") == "Half the maximum."
    assert CALIBRATORS.load("half")(HISTOGRAMS["bell"], GRID).amax == HISTOGRAMS["bell"].amax / 2


def test_the_grid_of_a_format_holds_what_it_can_store() -> None:
    assert np.array_equal(GRID.magnitudes, np.arange(128))
    assert grid_for(FORMATS["nvfp4"]).magnitudes.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    eight_bits = grid_for(FP8)
    assert (eight_bits.magnitudes.size, eight_bits.top, eight_bits.is_even) == (127, 448, False)
    for form in FORMATS.values():
        assert grid_for(form).top == form.qmax


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


def published(histogram: Histogram) -> float:
    """The threshold by the definition: every candidate, the first bin replaced, half a bin added; widest wins."""
    counts, width = coarsen(histogram, 2049)
    counts = counts.copy()
    counts[0] = counts[1]
    found = {kept: divergence(counts, kept) for kept in range(counts.size, 127, -1)}
    least = min(found.values())
    kept = next(kept for kept, value in found.items() if value <= least + 1e-12)
    return (kept + 0.5) * width


@pytest.mark.parametrize(
    "values",
    [SHAPES["heavy-tailed"], np.append(np.maximum(RANDOM.standard_normal(30_000), 0), 9.0)],
    ids=["heavy-tailed", "half of it zeros"],
)
def test_entropy_finds_the_threshold_of_the_published_definition(values: np.ndarray) -> None:
    """Pins the half bin and the first bin: without either the threshold is another one."""
    histogram = histogram_of(values)
    wanted = published(histogram)
    assert wanted < histogram.amax
    assert entropy(histogram, GRID).amax == wanted


def test_zeros_do_not_decide_the_entropy_threshold() -> None:
    """However many there are, their bin is that of its neighbour: every scale represents a zero exactly."""
    values = np.append(np.abs(RANDOM.standard_normal(30_000)) + 1e-3, 9.0)
    several = [
        entropy(histogram_of(np.append(values, np.zeros(zeros))), GRID).amax
        for zeros in (0, 10_000, 10_000_000)
    ]
    assert several[0] == several[1] == several[2] < 9.0


def test_entropy_clips_nothing_where_levels_are_not_even() -> None:
    found = entropy(HISTOGRAMS["bell"], grid_for(FP8))
    assert (found.amax, found.method) == (HISTOGRAMS["bell"].amax, "max")


def test_entropy_cuts_off_a_lone_outlier() -> None:
    values = np.append(RANDOM.standard_normal(50_000), 60.0)
    assert entropy(histogram_of(values), GRID).amax < 10


def test_percentile_counts_from_below() -> None:
    values = np.arange(1, 10_001) / 10_000
    assert percentile(histogram_of(values), GRID, 50).amax == pytest.approx(0.5, abs=1e-3)
    assert percentile(histogram_of(values), GRID, 100).amax == np.float32(1.0)


@pytest.mark.parametrize("percent", [0, -1, 101])
def test_an_impossible_percentile_is_refused(percent: float) -> None:
    with pytest.raises(CalibrationDataError, match="outside"):
        percentile(HISTOGRAMS["bell"], GRID, percent)


def test_legacy_is_never_below_the_percentile() -> None:
    for histogram in HISTOGRAMS.values():
        assert legacy(histogram, GRID, 0.999).amax >= percentile(histogram, GRID, 99.9).amax


@pytest.mark.parametrize("quantile", [0, 1.5])
def test_an_impossible_quantile_is_refused(quantile: float) -> None:
    with pytest.raises(CalibrationDataError, match="outside"):
        legacy(HISTOGRAMS["bell"], GRID, quantile)


def squared_error(values: np.ndarray, amax: float, grid: Grid = GRID) -> float:
    """By the definition: every magnitude goes to the nearest one of the grid."""
    step = amax / grid.top
    between = (grid.magnitudes[1:] + grid.magnitudes[:-1]) / 2
    stored = grid.magnitudes[np.searchsorted(between, np.abs(values) / step)] * step
    return float(np.mean((np.abs(values) - stored) ** 2))


@pytest.mark.parametrize("shape", ["bell", "heavy-tailed", "even"])
@pytest.mark.parametrize("form", ["int8", "int4", "fp8", "nvfp4"])
def test_the_noise_read_off_a_histogram_is_the_noise_of_the_values(shape: str, form: str) -> None:
    grid = grid_for(FORMATS[form])
    for share in (0.1, 0.5, 1.0):
        amax = HISTOGRAMS[shape].amax * share
        assert noise_of(HISTOGRAMS[shape], grid)(amax) == pytest.approx(
            squared_error(SHAPES[shape], amax, grid), rel=0.03
        )


@pytest.mark.parametrize("shape", ["bell", "half-bell", "heavy-tailed"])
@pytest.mark.parametrize("form", ["int8", "int4", "nvfp4"])
def test_mse_is_close_to_the_best_of_a_thousand_thresholds(shape: str, form: str) -> None:
    histogram, grid = HISTOGRAMS[shape], grid_for(FORMATS[form])
    least = min(squared_error(SHAPES[shape], histogram.amax * share / 1000, grid) for share in range(2, 1001))
    assert squared_error(SHAPES[shape], mse(histogram, grid).amax, grid) <= least * 1.01


def test_best_is_as_quiet_as_the_quietest_of_those_that_compete() -> None:
    for histogram in HISTOGRAMS.values():
        noise = noise_of(histogram, GRID)
        noises = [noise(CALIBRATORS.load(name)(histogram, GRID).amax) for name in NAMES if name != "legacy"]
        assert noise(CALIBRATORS.load("best")(histogram, GRID).amax) == min(noises)


def test_a_grid_is_sorted_and_without_signs() -> None:
    assert grid_of([-2, 1, 2, 0]).magnitudes.tolist() == [0, 1, 2]


@pytest.mark.parametrize("outliers", [1, 5])
def test_entropy_tries_as_few_bins_as_there_are_levels(outliers: int) -> None:
    width = 2.0 / 4096  # of a histogram whose largest magnitude is 1
    crowded = [[(number + 0.5) * width] * (1000 if number % 2 else 1) for number in range(128)]
    values = np.array([value for bin_ in crowded for value in bin_] + [1.0] * outliers, np.float32)
    assert entropy(histogram_of(values), grid_for(INT8)).amax == pytest.approx(128.5 * width)


@pytest.mark.parametrize("percent", [50, 90, 99, 99.9])
@pytest.mark.parametrize("name", sorted(HISTOGRAMS.keys() - {"constant", "single"}))
def test_the_percentile_is_where_that_share_of_the_values_lies_below(name: str, percent: float) -> None:
    histogram = HISTOGRAMS[name]
    edges = np.arange(histogram.counts.size + 1) * histogram.width
    below = np.concatenate(([0], np.cumsum(histogram.counts)))
    amax = percentile(histogram, GRID, percent).amax
    share = np.interp(amax, edges, below)
    if amax == histogram.amax:  # no range is larger than the largest value
        assert share <= histogram.total * percent / 100
    else:
        assert share == pytest.approx(histogram.total * percent / 100)
