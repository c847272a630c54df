"""Loops without numba give the bits of the compiled ones, so that nobody can tell which of them ran."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from calibrators import compiled, kernels, noise
from calibrators.grid import Grid
from calibrators.histogram import Histogram, Tally, scratch
from calibrators.methods import entropy
from qdqtool.core.grids import grid_for
from qdqtool.core.quant_format import FP8, INT8, NVFP4

ANY = arrays(np.float32, st.integers(0, 60), elements=st.floats(width=32))
GRIDS = tuple(map(grid_for, (INT8, FP8, NVFP4)))
RANDOM = np.random.default_rng(18)
DISTRIBUTIONS = {
    "normal": RANDOM.standard_normal(60_000),
    "behind a Relu": np.maximum(0, RANDOM.standard_normal(50_000)),
    "heavy tails": RANDOM.standard_t(2, 30_000),
    "few": RANDOM.standard_normal(200),
    "one value": np.full(10, 0.3),
    "two values": np.array([0.001, 1.0] * 9),
    "a gap": np.append(RANDOM.random(3000) * 0.01, 1.0),
    "even": np.linspace(0, 1, 5000),
    "steps": np.arange(256) / 255,
    "zeros": np.zeros(7),
    "a power of two": np.append(RANDOM.random(999), 2.0),
    "tiny": RANDOM.standard_normal(999) * 1e-36,
    "many of a kind": np.repeat(RANDOM.random(5), 70_000),
}


def small(loop: Any) -> Any:
    """The form without numba."""
    return vars(loop)["small"]


def loop(of: Any) -> Any:
    """The compiled form."""
    return vars(of).get("loop") or of.loop


def counted(values: list[np.ndarray[Any, Any]], form: Any) -> Histogram:
    tally, lanes = Tally(), scratch()
    for part in values:
        flat = np.require(part, np.float32, ("C", "W"))
        form(kernels.accumulate)(flat, flat.view(np.int32), tally._counts, lanes, tally._state)
    return tally.histogram()


@given(st.lists(ANY, min_size=1, max_size=4))
def test_both_forms_count_the_same(values: list[np.ndarray[Any, Any]]) -> None:
    assert counted(values, small) == counted(values, loop)


@given(arrays(np.int64, 4096, elements=st.integers(0, 9), fill=st.just(0)), st.integers(-1, 80))
def test_both_forms_shrink_alike(counts: np.ndarray[Any, Any], halvings: int) -> None:
    left, right = counts.copy(), counts.copy()
    small(kernels.shrink)(left, halvings)
    loop(kernels.shrink)(right, halvings)
    assert np.array_equal(left, right)


def histogram(name: str) -> Histogram:
    return counted([DISTRIBUTIONS[name].astype(np.float32)], loop)


@pytest.mark.parametrize("grid", GRIDS, ids=["INT8", "FP8", "FP4"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_both_forms_find_the_same_error_and_the_same_quietest_threshold(name: str, grid: Grid) -> None:
    found = histogram(name)
    moments = noise.running_moments(found)
    highest = found.amax / found.width if found.width else 1.0
    thresholds = [1e-6, *(highest * share for share in RANDOM.random(40)), highest, 4096.0, 9e4]
    one, other = (
        [form(noise.squared_error)(moments, each, grid.magnitudes) for each in thresholds]
        for form in (small, loop)
    )
    assert one == other
    assert small(noise.quietest)(moments, highest, grid.magnitudes) == loop(noise.quietest)(
        moments, highest, grid.magnitudes
    )


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_both_forms_keep_as_many_bins(name: str) -> None:
    counts = histogram(name).used
    if counts.size % 2:
        counts = np.append(counts, 0)
    for halved in (counts, counts[0::2] + counts[1::2]):
        if halved.size > 128:
            told = small(entropy.best_threshold)(halved, 128)
            assert told is NotImplemented or told == loop(entropy.best_threshold)(halved, 128)


@given(arrays(np.int64, st.integers(130, 400), elements=st.integers(0, 50), fill=st.just(0)))
def test_both_forms_keep_as_many_bins_of_any_counts(counts: np.ndarray[Any, Any]) -> None:
    counts[-1] = 1
    told = small(entropy.best_threshold)(counts, 128)
    assert told is NotImplemented or told == loop(entropy.best_threshold)(counts, 128)


def test_small_jobs_do_not_load_numba_and_large_ones_do() -> None:
    code = (
        "import sys, numpy as np; from calibrators.histogram import histogram_of; import calibrators;"
        "from qdqtool.core.grids import grid_for; from qdqtool.core.quant_format import INT8;"
        "h = histogram_of(np.random.default_rng(0).standard_normal(9999).astype(np.float32));"
        "[calibrators.load(n)(h, grid_for(INT8)) for n in calibrators.names()]; before = 'numba' in sys.modules;"
        "histogram_of(np.zeros(100000, np.float32)); print(before, 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True"]


def test_many_small_calls_end_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_spent", [0])
    taken: list[str] = []
    made = compiled.compiled_beyond(lambda _: taken.append("small"))(lambda _: taken.append("loop"))
    vars(made)["loop"] = lambda _: taken.append("loop")
    for _ in range(5):
        made(np.zeros(compiled.SMALL))
    made(np.zeros(compiled.SMALL + 1))
    assert taken == ["small"] * 5 + ["loop"]
    for _ in range(1 << 14):
        made(np.zeros(1))
    assert taken[-1] == "loop"
