"""The study that all workers of a sweep share: orders trials by expected gain, assigns them, and ends trials of dead workers.

One worker at a time claims a trial: it reads all trials and takes a free choice. So every choice is tried once, even
if many workers start at one moment. The storage holds no queue, which every read of the study would have to read too.
The worker of a running trial writes a sign of life every few seconds. If a waiting worker sees no sign for a minute
by its own clock, the choice is free again; on the machine of the dead worker, it is free at once. If the worker is
alive after all, its result no longer counts.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from optuna.samplers import BaseSampler
from optuna.trial import TrialState
from pydantic import TypeAdapter

from qdqtool.core.sweep import Value
from qdqtool.errors import BuildError, UsageError
from qdqtool.io.json_files import canonical
from qdqtool.pipeline.sweep.space import METHOD, Choice, Space
from qdqtool.pipeline.sweep.storage import Storage, StorageLost, guard_rows, speaking_plainly
from qdqtool.platform import is_alive, machine

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


# Seconds between two signs of life of a worker; it counts as dead after twelve missing signs.
BEAT_S = 5.0
GRACE_S = 60.0
WORKER = "worker"
BEAT = "beat"
REASON = "reason"
CHOICE = "choice"
_CHOICE = TypeAdapter(dict[str, Value])
_TEXTS = TypeAdapter(list[str])
Objective = Callable[[dict[str, Value], Callable[[str, Any], None]], tuple[float, float]]


class TrialWatch:
    """Finds running trials without a sign of life, by the clock of this process alone."""

    def __init__(self, patience_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience_s = GRACE_S if patience_s is None else patience_s
        self.clock = clock
        self.progress: dict[int, tuple[Any, float]] = {}

    def silent(self, signs: Mapping[int, Any]) -> list[int]:
        """Return the numbers of trials whose sign of life has not changed for `patience_s` seconds.

        `signs` has the last sign of each running trial, by its number; None for a trial that has sent none.
        """
        now = self.clock()
        before = self.progress
        self.progress = {
            number: before[number] if number in before and before[number][0] == sign else (sign, now)
            for number, sign in signs.items()
        }
        return [number for number, (_, since) in self.progress.items() if now - since > self.patience_s]


@contextmanager
def beating(trial: Any, url: str) -> Iterator[None]:
    """Signal every few seconds that a worker runs this trial."""
    import optuna

    over = threading.Event()
    trial.set_user_attr(BEAT, 0)

    def beat() -> None:
        count = 0
        while not over.wait(BEAT_S):
            count += 1
            # A lost sign of life does no harm: the worker that ends the trial finds the same storage and state.
            with suppress(StorageLost, optuna.exceptions.UpdateFinishedTrialError), speaking_plainly(url):
                trial.set_user_attr(BEAT, count)

    heart = threading.Thread(target=beat, name="beat", daemon=True)
    heart.start()
    try:
        yield
    finally:
        over.set()
        heart.join(BEAT_S)


class Study:
    """A study in its storage."""

    def __init__(self, storage: Storage, name: str, identity: Mapping[str, str], sampler: Any) -> None:
        """Open the study `name`, or create it.

        Raises:
            UsageError: the study was made for other inputs.
            InputFileError: the storage cannot be used.
        """
        import optuna

        self.url = storage.url
        self.storage = storage
        self.watch = TrialWatch()
        self._mine: int | None = None
        with speaking_plainly(self.url), guard_rows(self.url):
            self.study = optuna.create_study(
                storage=storage.opened,
                study_name=name,
                sampler=sampler,
                directions=["maximize", "minimize"],
                load_if_exists=True,
            )
            for key, value in identity.items():
                stored = self.study.user_attrs.get(key)
                if stored is None:
                    self.study.set_user_attr(key, value)
                elif stored != value:
                    raise UsageError(
                        f"the study {name!r} was written with another {key}",
                        fix="choose another --out or --study, or pass the inputs with which the study was started",
                        where=self.url,
                    )

    def search(self, space: Space) -> None:
        """Pass the space of all choices to the sampler, if the sampler needs it before the first trial."""
        search = getattr(self.study.sampler, "search", None)
        if search is not None:
            search(space)

    def agreed(self, key: str, make: Callable[[], list[str]]) -> list[str]:
        """Return a value that all workers of the study share. The first worker computes and stores it."""
        with speaking_plainly(self.url):
            if key not in self.study.user_attrs:
                value = make()
                with self.storage.alone(self.study.study_name):
                    if key not in self.study.user_attrs:
                        self.study.set_user_attr(key, value)
            with guard_rows(self.url):
                return _TEXTS.validate_python(self.study.user_attrs[key])

    def revive(self) -> None:
        """Give up trials that dead workers of this machine, Ctrl-C or a lost connection left unfinished.

        Call it between trials only: a trial that this process seems to be running then is lost. Its choice can be
        tried again.
        """
        import optuna

        state = optuna.trial.TrialState
        with speaking_plainly(self.url), guard_rows(self.url):
            for trial in self.study.get_trials(deepcopy=False, states=(state.RUNNING,)):
                if trial.number == self._mine or _is_orphan(trial):
                    self._settle(trial.number, state.FAIL)

    def retire(self) -> None:
        """Give up trials whose workers have been silent for too long. Their choices can then be tried again."""
        import optuna

        state = optuna.trial.TrialState
        with speaking_plainly(self.url), guard_rows(self.url):
            running = self.study.get_trials(deepcopy=False, states=(state.RUNNING,))
            for number in self.watch.silent({trial.number: trial.user_attrs.get(BEAT) for trial in running}):
                self._settle(number, state.FAIL)

    def step(self, space: Space, objective: Objective, *, most: int, drawn: bool) -> bool:
        """Run one trial; return False if all wanted trials are done or running.

        A trial that the builder refuses counts as failed; any other error ends the sweep. If another worker stored a
        result meanwhile, because it took this worker for dead, that result stays.

        Args:
            space: the choices.
            objective: returns the result of a choice.
            most: how many choices are wanted in all.
            drawn: whether the sampler draws choices; else they are the first of the grid.
        """
        import optuna

        with speaking_plainly(self.url), suppress(optuna.exceptions.UpdateFinishedTrialError):
            with self.storage.alone(self.study.study_name), guard_rows(self.url):
                claimed = self._claim(space, most, drawn=drawn)
            if claimed is None:
                return False
            trial, choice = claimed
            with beating(trial, self.url):
                self._do(trial, choice, objective)
        return True

    def _claim(self, space: Space, most: int, *, drawn: bool) -> tuple[Any, dict[str, Value]] | None:
        """Return a trial with a choice that no other worker has, or None. Only one worker at a time may call this."""
        import optuna

        state = optuna.trial.TrialState
        trials = self.study.get_trials(deepcopy=False)
        taken = {_choice_key(choice_of(trial)) for trial in trials if _is_settled(trial)}
        # A worker died between the two steps.
        waiting = any(trial.state is state.WAITING for trial in trials)
        while waiting or len(taken) < most:
            if not waiting and not drawn and not self._enqueue_next(space, most, taken):
                return None
            trial = self.study.ask()
            self._mine = trial.number
            trial.set_user_attr(WORKER, f"{machine()}:{os.getpid()}")
            choice = {
                name: trial.suggest_categorical(name, list(values)) for name, values in space.values.items()
            }
            if CHOICE not in trial.user_attrs:
                trial.set_user_attr(CHOICE, choice)
            if _choice_key(choice) not in taken:
                return trial, choice
            self._settle(trial.number, state.PRUNED)
            # A sampler that prefers one choice would draw it again forever.
            waiting = drawn and self._enqueue_next(space, space.size, taken)
            waiting = waiting or bool(self.study.get_trials(deepcopy=False, states=(state.WAITING,)))
        return None

    def _enqueue_next(self, space: Space, most: int, taken: AbstractSet[str]) -> bool:
        """Queue the first free choice among the first `most` of the grid; return False if there is none."""
        choice = next(
            (candidate for candidate in islice(space.grid(), most) if _choice_key(candidate) not in taken),
            None,
        )
        if choice is not None:
            self.study.enqueue_trial(dict(choice), user_attrs={CHOICE: dict(choice)})
        return choice is not None

    def _do(self, trial: Any, choice: dict[str, Value], objective: Objective) -> None:
        import optuna

        state = optuna.trial.TrialState
        try:
            values = objective(choice, trial.set_user_attr)
        except BuildError as error:
            trial.set_user_attr(REASON, str(error))
            self._settle(trial.number, state.FAIL)
        except BaseException:
            with suppress(StorageLost), speaking_plainly(self.url):
                self._settle(trial.number, state.FAIL)
            raise
        else:
            if math.isnan(sum(values)):
                trial.set_user_attr(REASON, "the accuracy or the time is not a number")
                self._settle(trial.number, state.FAIL)
            else:
                self._settle(trial.number, state.COMPLETE, values)

    def _settle(self, number: int, state: Any, values: tuple[float, float] | None = None) -> None:
        """Store the result of a trial, unless another worker has stored it already."""
        import optuna

        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            self.study.tell(number, values, state=state, skip_if_finished=True)

    def trials(self) -> list[Any]:
        """Return all trials as optuna stores them."""
        with speaking_plainly(self.url), guard_rows(self.url):
            return list(self.study.get_trials(deepcopy=False))


def choice_of(trial: Any) -> dict[str, Value]:
    """Return the values of a trial, also if the trial is queued, or was lost before all values were drawn.

    Raises:
        ValueError: the study has values that no sweep writes.
    """
    return _CHOICE.validate_python(trial.user_attrs.get(CHOICE) or trial.params)


def _choice_key(choice: Choice) -> str:
    """Return a text that is unique for a choice."""
    return canonical(dict(choice))


def _is_settled(trial: Any) -> bool:
    """Return True if this trial has or will have a result, or was refused for good."""
    import optuna

    state = optuna.trial.TrialState
    return trial.state in {state.RUNNING, state.COMPLETE} or (
        trial.state is state.FAIL and REASON in trial.user_attrs
    )


def _is_orphan(trial: Any) -> bool:
    """Return True if the worker of a running trial was this process, or a process of this machine that has ended."""
    host, _, process = str(trial.user_attrs.get(WORKER, "")).rpartition(":")
    if host != machine() or not process.isdigit():
        return False
    return int(process) == os.getpid() or not is_alive(int(process))


# --- sampler ---------------------------------------------------------------------------------------------------------
# Orders trials by expected gain: the results of finished trials for each value decide which choice comes next.
#
# Accuracy and the logarithm of the time are modelled as sums of one effect per value, each with its uncertainty
# (Bayesian linear regression). The worth of a choice is its expected gain over the best accuracy among equally fast
# trials: s (phi(z) + z Phi(z)), expected improvement (Mockus 1974; Jones et al. 1998). Values that no trial had are
# the most uncertain, so each is tried early, calibrators first.
#
# An Optuna sampler: no choice is drawn twice while others are left, and equal trials give an equal next choice.


_MOST: Final = 20_000
"""Most choices that are compared; of a larger grid, the first ones."""
_PRIOR: Final = 1.0
"""Prior variance of an effect, relative to the variance of the measured values."""
_NOISE: Final = 0.1
"""Variance that no sum of effects explains, relative to the variance of the measured values."""


class ExpectedGain(BaseSampler):  # type: ignore[misc]
    """Chooses the untried choice with the largest expected gain."""

    def __init__(self) -> None:
        self._space: Space | None = None

    def search(self, space: Space) -> None:
        """Set the space of all choices, from which the sampler chooses."""
        self._space = space

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        """Return a categorical distribution for each name of the space: Optuna draws all names together."""
        from optuna.distributions import CategoricalDistribution

        del study, trial
        values = {} if self._space is None else self._space.values
        return {name: CategoricalDistribution(list(choices)) for name, choices in values.items()}

    def sample_relative(
        self, study: Any, trial: Any, search_space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the next choice. If all were tried, return any choice; the study then drops it as a duplicate."""
        del trial, search_space
        assert self._space is not None
        trials = study.get_trials(deepcopy=False)
        choices = next_choice(self._space, trials)
        return dict(choices) if choices is not None else next(iter(self._space.grid()))

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        """Return the first value. Optuna requires this method for names outside the space, which do not exist here."""
        del study, trial, param_name
        return param_distribution.choices[0]


def next_choice(space: Space, trials: Sequence[Any]) -> Choice | None:
    """Return the untried configuration with the largest expected gain; None if none is left.

    `trials` are the trials of the study.
    """
    taken = [choice_of(trial) for trial in trials if _counts(trial)]
    tried = {_choice_key(choice) for choice in taken}
    left = [
        choice
        for _, choice in zip(range(_MOST), space.grid(), strict=False)
        if _choice_key(choice) not in tried
    ]
    if not left:
        return None
    fresh = _untried_values(space, taken, left)
    if fresh is not None:
        return fresh
    done = [
        trial
        for trial in trials
        if trial.state is TrialState.COMPLETE and trial.params.keys() == space.values.keys()
    ]
    if not done:
        return left[0]
    return left[int(np.argmax(_gains(space, done, left)))]


def _counts(trial: Any) -> bool:
    """Return True if a configuration was tried, is running or queued, or was refused for good."""
    states = {TrialState.COMPLETE, TrialState.RUNNING, TrialState.WAITING}
    return trial.state in states or (trial.state is TrialState.FAIL and "reason" in trial.user_attrs)


def _untried_values(space: Space, taken: Sequence[Choice], left: Sequence[Choice]) -> Choice | None:
    """Return a choice with a value that no trial had, and the first values of all other names.

    Values of the calibrator come first. Return None if every value was tried, or if this choice is not left.
    """
    for name in sorted(space.values, key=lambda name: name != METHOD):
        tried = {choice.get(name) for choice in taken}
        for value in space.values[name]:
            if value in tried:
                continue
            usual = {key: values[0] for key, values in space.values.items()}
            usual_key = _choice_key({**usual, name: value})
            return next((choice for choice in left if _choice_key(choice) == usual_key), None)
    return None


def _gains(space: Space, done: Sequence[Any], left: Sequence[Choice]) -> NDArray[np.float64]:
    """Return the expected gain in accuracy of each choice over the trials that are as fast as the choice."""
    columns = [(name, value) for name, values in space.values.items() for value in values]
    rows_done = _rows([trial.params for trial in done], columns)
    choices = _rows(left, columns)
    accuracy = np.array([trial.values[0] for trial in done], np.float64)
    times = np.array([math.log(trial.values[1]) if trial.values[1] > 0 else 0.0 for trial in done])
    expected, doubt = _predict_rows(rows_done, accuracy, choices)
    speed, _ = _predict_rows(rows_done, times, choices)
    floor = float(accuracy.min())
    best = np.array([accuracy[times <= time + 1e-9].max(initial=floor) for time in speed])
    z = (expected - best) / doubt
    density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    below = np.array([math.erfc(-score / math.sqrt(2)) / 2 for score in z])
    gains: NDArray[np.float64] = doubt * (density + z * below)
    return gains


def _rows(
    choices: Sequence[Mapping[str, Value]], columns: Sequence[tuple[str, Value]]
) -> NDArray[np.float64]:
    return np.array(
        [[1.0 if choice[name] == value else 0.0 for name, value in columns] for choice in choices]
    )


def _predict_rows(
    measured: NDArray[np.float64], values: NDArray[np.float64], rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and standard deviation of the result that a linear model predicts for each of `rows`.

    The model is fitted to the results `values` of the rows `measured`.
    """
    scale = float(values.std()) or 1.0
    middle = float(values.mean())
    precision = measured.T @ measured / _NOISE + np.eye(measured.shape[1]) / _PRIOR
    covariance = np.linalg.inv(precision)
    effects = covariance @ measured.T @ ((values - middle) / scale) / _NOISE
    spread = np.sqrt(np.einsum("ij,jk,ik->i", rows, covariance, rows))
    return middle + scale * (rows @ effects), scale * spread + 1e-12
