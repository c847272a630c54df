"""The smallest set of float nodes that keeps a limit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.comparison import TaskAccuracy
from qdqtool.core.evidence import largest_loss
from qdqtool.core.protocols import Feeds
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.sensitivity import FloatLimit, FloatSet
from qdqtool.errors import UsageError
from qdqtool.pipeline.search.float_nodes import FloatSearch, Limit
from qdqtool.pipeline.search.subsets import SampleRun, SubsetOutcome, TrialRunner
from qdqtool.pipeline.search.switched import Units
from tests.accuracy.test_sensitivity import NOISES, Noisy, decibel, samples


class Cancelling(Noisy):
    """All nodes make noise in the same direction, so that those of opposite signs cancel."""

    def outputs_of(self, feeds: Feeds, subset: frozenset[str]) -> dict[str, np.ndarray]:
        noise = sum(level for node, level in self._noises.items() if node in subset)
        return {"y": np.concatenate([feeds["x"], [[noise]]], axis=1)}


def searched(runner: Noisy, limit: Limit) -> FloatLimit:
    trials = TrialRunner(runner, CompareOptions(task="agreement"))
    units = Units(members={node: (node,) for node in runner.nodes}, compute=frozenset(runner.nodes))
    return FloatSearch((trials, trials), units, (samples(), samples()), limit).run()


def test_nothing_is_float_where_the_limit_holds_anyway() -> None:
    found = searched(Noisy(NOISES), Limit(min_sqnr=5.0))
    assert found.chosen == found.whole
    assert found.path == ()
    assert found.evaluations == 0


def test_the_loudest_node_is_enough_where_it_makes_the_noise() -> None:
    found = searched(Noisy(NOISES), Limit(min_sqnr=15.0))
    assert found.chosen is not None
    assert found.chosen.kept == ("loud",)
    assert found.chosen.sqnr_db == pytest.approx(decibel(0.1, 0.01))
    assert found.chosen.int8_nodes == 3


def test_a_node_whose_noise_another_cancels_is_not_made_float_by_itself() -> None:
    """Alone `plus` is as loud as `minus`, but the two together are silent: only `other` makes noise."""
    found = searched(Cancelling({"plus": 0.5, "minus": -0.5, "other": 0.1}), Limit(min_sqnr=30.0))
    assert found.chosen is not None
    assert found.chosen.kept == ("other",)


def test_a_node_that_is_no_longer_needed_is_taken_back() -> None:
    """`big` brings most at first; beside the two others, which have to be float, it need not be."""

    class Hidden(Noisy):
        def outputs_of(self, feeds: Feeds, subset: frozenset[str]) -> dict[str, np.ndarray]:
            pair = len(subset & {"a", "b"})
            noise = {0: 0.0, 1: 0.30, 2: 0.32}[pair] * (1.0 if "big" in subset else 0.9)
            return {"y": np.concatenate([feeds["x"], [[noise]]], axis=1)}

    found = searched(Hidden({"big": 0, "a": 0, "b": 0}), Limit(min_sqnr=40.0))
    assert found.chosen is not None
    assert found.chosen.kept == ("a", "b")
    assert any("big" in entry.kept for entry in found.path)


def test_a_limit_that_nothing_keeps_has_no_set() -> None:
    class Constant(Noisy):
        def outputs_of(self, feeds: Feeds, subset: frozenset[str]) -> dict[str, np.ndarray]:
            return {"y": np.concatenate([feeds["x"], [[0.5 if subset is not None else 0.0]]], axis=1)}

    class Floating(Constant):
        """The float model is exact; anything that was ever quantized is not, however little is left."""

        def run(self, feeds, subsets):
            for name in subsets:
                noise = 0.5 if name else 0.0
                yield name, [{"y": np.concatenate([one["x"], [[noise]]], axis=1)} for one in feeds]

    found = searched(Floating(NOISES), Limit(min_sqnr=60.0))
    assert found.chosen is None
    assert [set(entry.kept) for entry in found.path] == [set(NOISES)]


def test_a_limited_drop_of_an_unknown_task_is_refused() -> None:
    trials = TrialRunner(Noisy(NOISES), CompareOptions(task="none"))
    units = Units(members={node: (node,) for node in NOISES}, compute=frozenset(NOISES))
    search = FloatSearch((trials, trials), units, (samples(), samples()), Limit(max_drop=1.0))
    with pytest.raises(UsageError, match="the task metric is not measured"):
        search.run()


@given(
    levels=st.lists(st.floats(-0.3, 0.3).filter(lambda level: abs(level) > 1e-3), min_size=1, max_size=6),
    limit=st.floats(0, 60),
)
@settings(max_examples=40, deadline=None)
def test_the_set_keeps_the_limit_and_no_node_of_it_can_be_left_out(levels: list[float], limit: float) -> None:
    noises: Mapping[str, float] = {f"n{number}": level for number, level in enumerate(levels)}

    def keeps(kept: tuple[str, ...]) -> bool:
        noise = sum(level for name, level in noises.items() if name not in kept) ** 2
        return noise == 0 or -10 * np.log10(noise) >= limit - 1e-6

    found = searched(Cancelling(noises), Limit(min_sqnr=limit))
    assert found.chosen is not None
    assert keeps(found.chosen.kept)
    fewer = combinations(found.chosen.kept, len(found.chosen.kept) - 1) if found.chosen.kept else ()
    assert not any(
        -10 * np.log10(max(1e-300, sum(level for name, level in noises.items() if name not in kept) ** 2))
        >= limit + 1e-6
        for kept in fewer
    )


@given(
    levels=st.lists(st.floats(0.001, 0.3), min_size=24, max_size=40),
    limit=st.floats(5, 50),
)
@settings(max_examples=8, deadline=None)
def test_independent_noises_take_the_fewest_nodes_there_are_and_few_runs_on_the_checking_samples(
    levels: list[float], limit: float
) -> None:
    runner = Noisy({f"n{number}": level for number, level in enumerate(levels)})
    said: list[str] = []
    choosing, checking = samples(4), samples(40)
    bench = (
        TrialRunner(runner, CompareOptions(task="none")),
        TrialRunner(runner, CompareOptions(task="none")),
    )
    units = Units(members={node: (node,) for node in runner.nodes}, compute=frozenset(runner.nodes))
    found = FloatSearch(bench, units, (choosing, checking), Limit(min_sqnr=limit), None, said.append).run()
    total, fewest = sum(level**2 for level in levels), 0
    for level in sorted(levels, reverse=True):
        if -10 * np.log10(total) >= limit:
            break
        total, fewest = max(total - level**2, 1e-300), fewest + 1
    assert found.chosen is not None
    assert len(found.chosen.kept) == fewest
    if fewest:
        assert any(f"{fewest} of {len(levels)} float keep the limit" in words for words in said)
    # the proof that each node is needed takes one run for each; finding them takes few
    assert len(found.path) <= fewest + 4 * np.log2(len(levels)) + 4


@given(
    noises=st.lists(st.floats(0, 0.5), min_size=9, max_size=60),
    hits=st.lists(
        st.sampled_from([(1.0, 1.0), (1.0, 1.0), (1.0, 0.0), (0.0, 1.0), (1.0, 0.4)]),
        min_size=60,
        max_size=60,
    ),
    limit=st.one_of(
        st.floats(0, 40).map(lambda level: Limit(min_sqnr=level)),
        st.floats(0, 60).map(lambda drop: Limit(max_drop=drop)),
        st.tuples(st.floats(0, 60), st.floats(0.5, 0.99)).map(
            lambda one: Limit(max_drop=one[0], confidence=one[1])
        ),
    ),
    few=st.integers(1, 8),
)
def test_a_set_that_is_refused_early_misses_the_limit_on_all_samples(
    noises: list[float], hits: list[tuple[float, float]], limit: Limit, few: int
) -> None:
    runs = [
        SampleRun(noise=(noise,), signal=(1.0,), hits=hit) for noise, hit in zip(noises, hits, strict=False)
    ]
    count = len(runs)
    before, after = (100 * sum(hit[side] for hit in hits[:count]) / count for side in (0, 1))
    task = TaskAccuracy(
        metric="agreement", unit="%", reference=before, candidate=after, samples=count, low=None, high=None
    )
    noise = sum(noises) / count
    losses = np.array([left - right for left, right in hits[:count]])
    found = FloatSet(
        kept=(),
        sqnr_db=-10 * np.log10(noise) if noise else None,
        task=task,
        int8_nodes=0,
        total_nodes=0,
        worst_drop=100 * largest_loss(losses, limit.confidence) if limit.confidence else None,
    )
    # the first are the worst, as in a search
    ranked = sorted(runs, key=lambda run: run.hits[0] - run.hits[1], reverse=True)
    assert not (limit.is_out_of_reach(ranked[:few], runs) and limit.is_met(found))
    # on all samples there is nothing left to hope for
    assert limit.is_out_of_reach(runs, runs) or limit.is_met(found) or _is_close(limit, found)


def _is_close(limit: Limit, found: FloatSet) -> bool:
    return limit.min_sqnr is not None and abs(limit.min_sqnr - (found.sqnr_db or 0)) < 1e-6


class Uneven(Noisy):
    """Every sample has its own noise, and every node its share of it."""

    def outputs_of(self, feeds: Feeds, subset: frozenset[str]) -> dict[str, np.ndarray]:
        level = sum(level**2 for node, level in self._noises.items() if node in subset) ** 0.5
        own = np.exp(np.random.default_rng(abs(int(1e6 * float(feeds["x"].flat[0])))).standard_normal() / 2)
        return {"y": np.concatenate([feeds["x"], [[level * own]]], axis=1)}


@given(
    levels=st.lists(st.floats(0.01, 0.3), min_size=2, max_size=8),
    limit=st.floats(5, 40),
)
@settings(max_examples=15, deadline=None)
def test_with_a_confidence_the_lower_end_keeps_the_limit_and_no_fewer_nodes_are_float(
    levels: list[float], limit: float
) -> None:
    runner = Uneven({f"n{number}": level for number, level in enumerate(levels)})
    plain = searched(runner, Limit(min_sqnr=limit))
    sure = searched(runner, Limit(min_sqnr=limit, confidence=0.9))
    assert plain.chosen is not None
    assert sure.chosen is not None
    assert plain.chosen.least_db is None
    assert len(sure.chosen.kept) >= len(plain.chosen.kept)
    if sure.chosen.least_db is not None:
        assert limit - 1e-9 <= sure.chosen.least_db <= sure.chosen.sqnr_db + 1e-9


@given(
    lost=st.integers(0, 10),
    gained=st.integers(0, 10),
    count=st.integers(30, 400),
    most=st.floats(0.2, 10),
    confidence=st.floats(0.6, 0.99),
)
def test_as_many_samples_as_are_said_to_be_enough_are_and_fewer_are_not(
    lost: int, gained: int, count: int, most: float, confidence: float
) -> None:
    def shown(float_right: float, right: float) -> SampleRun:
        return SampleRun(noise=(0.0,), signal=(1.0,), hits=(float_right, right))

    runs = [shown(1, 0)] * lost + [shown(0, 1)] * gained + [shown(1, 1)] * (count - lost - gained)
    limit = Limit(max_drop=most, confidence=confidence)
    enough = limit.enough(runs)
    if enough is None:
        assert 100 * (lost - gained) / count >= most
        return

    def told(samples: float) -> float:
        many = samples / count
        spread = (many * (lost + gained) + 1) ** 0.5
        return 100 * (many * (lost - gained) + 1 + NormalDist().inv_cdf(confidence) * spread) / samples

    assert told(enough) <= most * (1 + 1e-6)
    assert told(max(1, 0.9 * enough - 1)) > most or enough <= 2


def test_a_drop_that_few_samples_cannot_tell_asks_for_no_more_than_they_can() -> None:
    def task(lost: int, samples: int) -> FloatSet:
        runs = [SampleRun(noise=(0.0,), signal=(1.0,), hits=(1.0, float(n >= lost))) for n in range(samples)]
        accuracy = TaskAccuracy(
            metric="top1",
            unit="%",
            reference=100.0,
            candidate=100.0 - 100 * lost / samples,
            samples=samples,
        )
        outcome = SubsetOutcome(noise=0.0, task=accuracy, shares=(0.0,) * samples, runs=tuple(runs))
        return Units(members={}, compute=frozenset()).float_set((), outcome, 0.9)

    few = Limit(max_drop=2.0, confidence=0.9)
    assert few.is_met(task(1, 64))  # worse than 2 points on others, but 64 samples tell no better
    assert not few.is_met(task(2, 64))
    assert not few.is_met(task(3, 200))  # 1.5 points of 2, which others may well exceed
    assert Limit(max_drop=2.0).is_met(task(3, 200))
    assert few.is_met(task(15, 1200))
