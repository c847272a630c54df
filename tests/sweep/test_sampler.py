"""The order of trials: every choice once, calibrators first, and the best one early."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtool.core.recipe import SweepOptions
from qdqtool.pipeline.sweep.space import METHOD, Choice, Space

optuna = pytest.importorskip("optuna", reason="sweeps need the extra sweep")
COMPLETE, FAIL, RUNNING = (getattr(optuna.trial.TrialState, name) for name in ("COMPLETE", "FAIL", "RUNNING"))
METHODS = ("entropy", "max", "mse", "percentile")


def space_of(methods: int = 4, keep: tuple[int, ...] = (0, 1, 2), weights: int = 2) -> Space:
    values = {METHOD: list(METHODS[:methods]), "calibrate.weights": ["max", "mse"][:weights]}
    options = SweepOptions.model_validate({"space": values, "keep_float": list(keep)})
    return Space(options, ("conv1", "conv2", "conv3", "conv4"))


def trial(
    choice: Choice, values: tuple[float, float] | None = None, state: Any = COMPLETE
) -> SimpleNamespace:
    return SimpleNamespace(params=dict(choice), user_attrs={}, state=state, values=values)


def order(space: Space, accuracy: Any) -> list[Choice]:
    """All choices in the order in which they are tried."""
    from qdqtool.pipeline.sweep.study import next_choice

    trials: list[SimpleNamespace] = []
    while (choice := next_choice(space, trials)) is not None:
        trials.append(trial(choice, (accuracy(choice), 1.0)))
    return [one.params for one in trials]


@given(
    methods=st.integers(1, 4),
    keep=st.sets(st.integers(0, 3), min_size=1, max_size=3),
    weights=st.integers(1, 2),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_every_choice_is_tried_once_and_each_calibrator_before_all_else(
    methods: int, keep: set[int], weights: int, seed: int
) -> None:
    if methods * len(keep) * weights < 2:
        return
    space = space_of(methods, tuple(sorted(keep)), weights)
    random = np.random.default_rng(seed)
    drawn = {repr(sorted(choice.items())): float(random.normal()) for choice in space.grid()}
    tried = order(space, lambda choice: drawn[repr(sorted(choice.items()))])
    assert sorted(map(repr, map(sorted, map(dict.items, tried)))) == sorted(
        repr(sorted(choice.items())) for choice in space.grid()
    )
    assert {choice[METHOD] for choice in tried[:methods]} == set(METHODS[:methods])


def test_the_best_choice_comes_sooner_than_by_chance() -> None:
    space = space_of(keep=(0, 1, 2, 3))
    places = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        effects = {(name, value): random.normal() for name, known in space.values.items() for value in known}
        level = {
            repr(choice): sum(effects[item] for item in choice.items()) + 0.1 * random.normal()
            for choice in space.grid()
        }
        tried = order(
            space, lambda choice, level=level: level[repr({name: choice[name] for name in space.values})]
        )
        ranks = [level[repr({name: choice[name] for name in space.values})] for choice in tried]
        places.append(int(np.argmax(ranks)) + 1)
    assert space.size == 32
    # values alone take 4 + 1 + 3 trials; a random order finds the best after 16.5
    assert np.mean(places) < 12


def test_the_same_trials_give_the_same_next_choice() -> None:
    space = space_of()
    first = order(space, lambda choice: float(len(str(choice))))
    assert first == order(space, lambda choice: float(len(str(choice))))


def test_what_is_at_work_or_refused_is_not_drawn_again() -> None:
    from qdqtool.pipeline.sweep.study import next_choice

    space = space_of()
    first = next_choice(space, [])
    assert first is not None
    refused = trial(first, state=FAIL)
    refused.user_attrs["reason"] = "the builder says no"
    assert next_choice(space, [trial(first, state=RUNNING)]) != first
    assert next_choice(space, [refused]) != first
    assert next_choice(space, [trial(first, state=FAIL)]) == first
