"""Laws of comparing two candidates sample by sample: how often equally good ones are told apart, and that an answer has one direction."""

from __future__ import annotations

import math
import re
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.core.evidence import (
    better,
    chance,
    false_alarm,
    find_ties,
    record_gain,
    student_quantile,
    student_tail,
)
from tests.shared import ROOT

DRAWS = 5000
NUMBERS = st.lists(st.floats(1e-6, 1.0), min_size=12, max_size=12).map(tuple)


def false_alarms(count: int, candidates: int = 1) -> float:
    """Share of draws in which any of the candidates is called better than a reference."""
    random = np.random.default_rng(count)
    found = 0
    for _ in range(DRAWS // candidates):
        plain = random.standard_normal(count)
        others = plain + random.standard_normal((candidates, count))
        found += any(better(one, plain.tolist(), candidates=candidates) for one in others.tolist())
    return found / (DRAWS // candidates)


@pytest.mark.parametrize("count", [2, 3, 4, 8, 16, 32, 72, 256])
def test_five_percent_of_equally_good_candidates_are_called_better(count: int) -> None:
    assert 0.04 < false_alarms(count) < 0.06


@pytest.mark.parametrize("count", [2, 8, 72])
@pytest.mark.parametrize("candidates", [2, 5])
def test_the_alarm_holds_for_all_candidates_together(count: int, candidates: int) -> None:
    assert 0.02 < false_alarms(count, candidates=candidates) < 0.065


@pytest.mark.parametrize("count", [3, 8, 72])
def test_the_best_of_several_is_rarely_left_out_of_those_that_are_tied(count: int) -> None:
    random = np.random.default_rng(count)
    lost = 0
    for _ in range(1000):
        numbers = random.standard_normal((5, count))
        numbers[0] -= 0.01  # the truly best one
        lost += "0" not in find_ties({str(place): tuple(one) for place, one in enumerate(numbers.tolist())})
    assert lost / 1000 < 0.06


def test_a_large_gain_is_found_with_few_samples_and_a_small_one_with_many() -> None:
    random = np.random.default_rng(0)
    plain = random.standard_normal(256)
    assert better((plain[:4] - 5 + 0.1 * random.standard_normal(4)).tolist(), plain[:4].tolist())
    gained = (plain - 0.3 + random.standard_normal(256)).tolist()
    assert better(gained, plain.tolist())


@given(NUMBERS, NUMBERS, st.integers(1, 9))
def test_of_two_one_at_most_is_better_and_more_candidates_never_help(
    one: tuple[float, ...], other: tuple[float, ...], candidates: int
) -> None:
    assert not (better(one, other) and better(other, one))
    assert not better(one, one)
    if better(one, other, candidates=candidates):
        assert better(one, other)


@given(NUMBERS, NUMBERS)
def test_the_chance_is_a_probability_and_does_not_depend_on_who_is_first(
    one: tuple[float, ...], other: tuple[float, ...]
) -> None:
    assert 0 <= chance(one, other) <= 1
    assert chance(one, other) == pytest.approx(chance(other, one))
    assert chance(one, one) == 1


def test_one_sample_and_unknown_numbers_show_nothing() -> None:
    assert not better((), ())
    assert not better((1.0,), (2.0,))
    assert not better((math.nan, 1.0), (2.0, 2.0))
    assert not better((1.0, 1.0), (math.inf, 2.0))
    assert list(find_ties({"a": (math.nan, 1.0), "b": (1.0, 2.0)})) == ["b"]


def test_equal_differences_count_as_signs() -> None:
    assert false_alarm((1.0,) * 3, (2.0,) * 3) == 0.125
    assert not better((1.0,) * 3, (2.0,) * 3)
    assert better((1.0,) * 8, (2.0,) * 8)
    assert not better((2.0,) * 8, (1.0,) * 8)


def test_numbers_of_different_samples_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        better((1.0, 2.0), (1.0,))
    with pytest.raises(ValueError, match="at least one"):
        better((1.0, 2.0), (1.0, 2.0), candidates=0)


@pytest.mark.parametrize(
    ("freedom", "level", "quantile"),
    [
        *((1, 0.975, 12.706), (2, 0.975, 4.303), (3, 0.975, 3.182), (4, 0.975, 2.776), (9, 0.975, 2.262)),
        *(
            (99, 0.975, 1.984),
            (7, 0.95, 1.895),
            (255, 0.95, 1.651),
            (3, 0.9995, 12.924),
            (5000, 0.975, 1.960),
        ),
    ],
)
def test_students_distribution_is_that_of_the_tables(freedom: int, level: float, quantile: float) -> None:
    assert student_quantile(freedom, level) == pytest.approx(quantile, abs=0.0006)
    assert student_tail(quantile, freedom) == pytest.approx(1 - level, rel=0.002)
    assert student_tail(-quantile, freedom) == pytest.approx(level, rel=1e-3)


ELSEWHERE = {
    "accuracy/tokens.py": "whether an output predicts tokens at all",
    "pipeline/search/float_nodes.py": "how many samples a bound takes",
    "backends/timing/series.py": "the spread of times, and the interval of a speed-up; it decides by the interval",
    "pipeline/datacheck.py": "how far two channels are apart, in standard errors",
    "pipeline/sweep/study.py": "expected improvement, which chooses what to try and accepts nothing",
    "pipeline/ranges/layer_walk.py": "shrinks the shifts of biases by their uncertainty",
    "report/sweeps.py": "intervals of trials that are told, for all of them at once",
}


def test_candidates_are_compared_here_and_nowhere_else() -> None:
    """Files that compute a spread or a quantile of their own; a new one asks `better` or says here why it does not."""
    root = ROOT / "qdqtool"
    spread = re.compile(r"\.std\(|stdev\(|erfc?\(|NormalDist\(|\.var\(")
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if spread.search(path.read_text("utf-8"))
    }
    assert found - {"core/evidence.py"} == set(ELSEWHERE)


def test_a_change_of_a_network_without_noise_does_not_help() -> None:
    """Of an infinite ratio nothing may be made: noise that a change adds would make it the best change."""
    assert not record_gain("x", (), [0.0, 0.0], [1.0, 2.0]).helps
    assert record_gain("x", (), [1.0, 2.0], [0.0, 0.0]).level == inf
