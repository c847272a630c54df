"""Orders trials by expected gain: the results of finished trials for each value decide which choice comes next.

Accuracy and the logarithm of the time are taken as sums of one effect per value, each known up to what the trials leave
open of it (Bayesian linear regression). A choice is worth what it is expected to gain over the best accuracy among
trials that are as fast: s (phi(z) + z Phi(z)), expected improvement (Mockus 1974; Jones et al. 1998). Values that no
trial had are the most uncertain ones, so each is tried early, calibrators before all else.

An Optuna sampler: no choice is drawn twice while others are left, and the same trials give the same next choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from qdqtool.core.sweep import Value
from qdqtool.pipeline.sweep.space import METHOD, Choice, Space
from qdqtool.pipeline.sweep.study import choice_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from optuna.distributions import BaseDistribution

_MOST: Final = 20_000
"""Most choices that are compared; of a larger grid, the first ones."""
_PRIOR: Final = 1.0
"""Prior variance of an effect, relative to the variance of the measured values."""
_NOISE: Final = 0.1
"""Variance that no sum of effects explains, relative to the variance of the measured values."""


class ExpectedGain(BaseSampler):  # type: ignore[misc]
    """Draws the untried choice with the largest expected gain."""

    def __init__(self) -> None:
        self._space: Space | None = None

    def search(self, space: Space) -> None:
        """Set the space to draw from."""
        self._space = space

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        """Return the distributions of all names, which are drawn together."""
        from optuna.distributions import CategoricalDistribution

        del study, trial
        values = {} if self._space is None else self._space.values
        return {name: CategoricalDistribution(list(known)) for name, known in values.items()}

    def sample_relative(
        self, study: Any, trial: Any, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next choice. If all were tried, return any; the study then leaves it out as a twin."""
        del trial, search_space
        assert self._space is not None
        trials = study.get_trials(deepcopy=False)
        choices = next_choice(self._space, trials)
        return dict(choices) if choices is not None else next(iter(self._space.grid()))

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """Return the first value of a name that is not in the space; this does not happen."""
        del study, trial, param_name
        return param_distribution.choices[0]


def next_choice(space: Space, trials: Sequence[Any]) -> Choice | None:
    """Return the untried choice with the largest expected gain; None if all choices were tried or are running.

    `trials` are those of the study.
    """
    taken = [choice_of(one) for one in trials if _counts(one)]
    known = {_key(choice) for choice in taken}
    left = [
        choice for _, choice in zip(range(_MOST), space.grid(), strict=False) if _key(choice) not in known
    ]
    if not left:
        return None
    fresh = _untried_values(space, taken, left)
    if fresh is not None:
        return fresh
    done = [
        one for one in trials if one.state is TrialState.COMPLETE and one.params.keys() == space.values.keys()
    ]
    if not done:
        return left[0]
    return left[int(np.argmax(_gains(space, done, left)))]


def _counts(trial: Any) -> bool:
    """Return whether a choice was tried, is running or queued, or was refused for good."""
    states = {TrialState.COMPLETE, TrialState.RUNNING, TrialState.WAITING}
    return trial.state in states or (trial.state is TrialState.FAIL and "reason" in trial.user_attrs)


def _key(choice: Choice) -> str:
    return repr(sorted(choice.items()))


def _untried_values(space: Space, taken: Sequence[Choice], left: Sequence[Choice]) -> Choice | None:
    """Return the next choice with a value without a trial and first values otherwise; calibrators come first."""
    for name in sorted(space.values, key=lambda name: name != METHOD):
        tried = {choice.get(name) for choice in taken}
        for value in space.values[name]:
            if value in tried:
                continue
            usual = {other: values[0] for other, values in space.values.items()}
            wanted = _key({**usual, name: value})
            return next((choice for choice in left if _key(choice) == wanted), None)
    return None


def _gains(space: Space, done: Sequence[Any], left: Sequence[Choice]) -> NDArray[np.float64]:
    """Return the expected gain in accuracy of each choice over trials that are as fast."""
    columns = [(name, value) for name, values in space.values.items() for value in values]
    seen = _rows([one.params for one in done], columns)
    asked = _rows(left, columns)
    accuracy = np.array([one.values[0] for one in done], np.float64)
    times = np.array([math.log(one.values[1]) if one.values[1] > 0 else 0.0 for one in done])
    expected, doubt = _predicted(seen, accuracy, asked)
    speed, _ = _predicted(seen, times, asked)
    floor = float(accuracy.min())
    best = np.array([accuracy[times <= one + 1e-9].max(initial=floor) for one in speed])
    z = (expected - best) / doubt
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erfc(-one / math.sqrt(2)) / 2 for one in z])
    gains: NDArray[np.float64] = doubt * (density + z * below)
    return gains


def _rows(
    choices: Sequence[Mapping[str, Value]], columns: Sequence[tuple[str, Value]]
) -> NDArray[np.float64]:
    return np.array(
        [[1.0 if choice[name] == value else 0.0 for name, value in columns] for choice in choices]
    )


def _predicted(
    seen: NDArray[np.float64], values: NDArray[np.float64], asked: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the predicted mean and standard deviation for each row of `asked`."""
    scale = float(values.std()) or 1.0
    middle = float(values.mean())
    precision = seen.T @ seen / _NOISE + np.eye(seen.shape[1]) / _PRIOR
    covariance = np.linalg.inv(precision)
    effects = covariance @ seen.T @ ((values - middle) / scale) / _NOISE
    spread = np.sqrt(np.einsum("ij,jk,ik->i", asked, covariance, asked))
    return middle + scale * (asked @ effects), scale * spread + 1e-12
