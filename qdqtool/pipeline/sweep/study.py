"""The study that all workers of a sweep share: assigns trials to workers, and ends trials of dead workers.

One worker at a time claims a trial: it reads all others and takes a free choice. So every choice is tried once,
whatever number of workers begin at the same moment, and no queue stands in the storage, which every look at the study
would read again. A running trial shows every few seconds that its worker lives. Of one that has shown nothing for a
minute, by the clock of a waiting worker, the choice is free again; on the machine where its worker ran, at once. Should
that worker live after all, what it found no longer counts.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

from pydantic import TypeAdapter

from qdqtool.core.sweep import Value
from qdqtool.errors import BuildError, UsageError
from qdqtool.io.json_files import canonical
from qdqtool.pipeline.sweep.space import Choice, Space
from qdqtool.pipeline.sweep.storage import Storage, StorageLost, speaking_plainly, undamaged
from qdqtool.platform import is_alive, machine

# A worker shows every so many seconds that it lives, and counts as dead after twelve times of silence.
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
    """Finds running trials without a sign of life. Only the clock of this process is used."""

    def __init__(self, patience_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.patience_s = GRACE_S if patience_s is None else patience_s
        self.clock = clock
        self.seen: dict[int, tuple[Any, float]] = {}

    def silent(self, signs: Mapping[int, Any]) -> list[int]:
        """Return the numbers of the trials whose last sign is older than the patience; a trial without a sign has None."""
        now = self.clock()
        known = self.seen
        self.seen = {
            number: known[number] if number in known and known[number][0] == sign else (sign, now)
            for number, sign in signs.items()
        }
        return [number for number, (_, since) in self.seen.items() if now - since > self.patience_s]


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
            # A beat that gets lost is no matter: the worker that settles the trial meets the same storage and state.
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
        with speaking_plainly(self.url), undamaged(self.url):
            self.study = optuna.create_study(
                storage=storage.opened,
                study_name=name,
                sampler=sampler,
                directions=["maximize", "minimize"],
                load_if_exists=True,
            )
            for key, value in identity.items():
                known = self.study.user_attrs.get(key)
                if known is None:
                    self.study.set_user_attr(key, value)
                elif known != value:
                    raise UsageError(
                        f"the study {name!r} was written with another {key}",
                        fix="choose another --out or --study, or continue with its original inputs",
                        where=self.url,
                    )

    def search(self, space: Space) -> None:
        """Give the sampler its space, if it needs the space before the first trial."""
        known = getattr(self.study.sampler, "search", None)
        if known is not None:
            known(space)

    def agreed(self, key: str, make: Callable[[], list[str]]) -> list[str]:
        """Return the value that the first worker made and stored under `key` for all workers.

        It is kept as the first trial of a separate study: trials are numbered one after the other, so that of two
        workers that finish at the same instant both take the same one's.
        """
        import optuna

        with speaking_plainly(self.url):
            with undamaged(self.url):
                is_made = bool(self._minutes(key).trials)
            if not is_made:
                made = optuna.trial.create_trial(value=0.0, user_attrs={key: make()})
                self._minutes(key).add_trial(made)
            with undamaged(self.url):
                first = min(self._minutes(key).trials, key=lambda trial: trial.number)
                return _TEXTS.validate_python(first.user_attrs[key])

    def _minutes(self, key: str) -> Any:
        """Open the separate study for `key` again: an open one may miss trials that were added just before."""
        import optuna

        name = f"{self.study.study_name}: {key}"
        return optuna.create_study(storage=self.storage.opened, study_name=name, load_if_exists=True)

    def revive(self) -> None:
        """Give up trials that dead workers of this machine, Ctrl-C or a lost connection left unfinished.

        Call it between trials only: whatever this process seems to be running then is lost. Its choice is free again.
        """
        import optuna

        state = optuna.trial.TrialState
        with speaking_plainly(self.url), undamaged(self.url):
            for trial in self.study.get_trials(deepcopy=False, states=(state.RUNNING,)):
                if trial.number == self._mine or _is_orphan(trial):
                    self._settle(trial.number, state.FAIL)

    def retire(self) -> None:
        """Give up trials whose workers have been silent for too long; their choices are free again."""
        import optuna

        state = optuna.trial.TrialState
        with speaking_plainly(self.url), undamaged(self.url):
            running = self.study.get_trials(deepcopy=False, states=(state.RUNNING,))
            for number in self.watch.silent({trial.number: trial.user_attrs.get(BEAT) for trial in running}):
                self._settle(number, state.FAIL)

    def step(self, space: Space, objective: Objective, *, most: int, drawn: bool) -> bool:
        """Run one trial; return False if all wanted trials are done or running.

        One that the builder refuses counts as failed, any other error ends the sweep. A trial that others settled in
        the meantime, because they took this worker for dead, is left to them.

        Args:
            space: what there is to choose from.
            objective: what a choice gives.
            most: how many choices are wanted in all.
            drawn: whether the sampler draws choices; else they are the first of the grid.
        """
        import optuna

        with speaking_plainly(self.url), suppress(optuna.exceptions.UpdateFinishedTrialError):
            with self.storage.alone(self.study.study_name), undamaged(self.url):
                claimed = self._claim(space, most, drawn=drawn)
            if claimed is None:
                return False
            trial, choice = claimed
            with beating(trial, self.url):
                self._do(trial, choice, objective)
        return True

    def _claim(self, space: Space, most: int, *, drawn: bool) -> tuple[Any, dict[str, Value]] | None:
        """Return a trial and a choice that no other worker has, or None. Only one worker may run this at a time."""
        import optuna

        state = optuna.trial.TrialState
        trials = self.study.get_trials(deepcopy=False)
        taken = {_key(choice_of(trial)) for trial in trials if _is_settled(trial)}
        # Left by a worker that died between the two, or by an older release, which queued all choices at once.
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
            if _key(choice) not in taken:
                return trial, choice
            self._settle(trial.number, state.PRUNED)
            # A sampler that likes one choice would draw it again for ever.
            waiting = drawn and self._enqueue_next(space, space.size, taken)
            waiting = waiting or bool(self.study.get_trials(deepcopy=False, states=(state.WAITING,)))
        return None

    def _enqueue_next(self, space: Space, most: int, taken: AbstractSet[str]) -> bool:
        """Queue the first free choice among the first `most` of the grid; return False if there is none."""
        choice = next((one for one in islice(space.grid(), most) if _key(one) not in taken), None)
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
        """End a trial, unless another worker has settled it in the meantime."""
        import optuna

        with suppress(optuna.exceptions.UpdateFinishedTrialError):
            self.study.tell(number, values, state=state, skip_if_finished=True)

    def trials(self) -> list[Any]:
        """Return all trials as optuna stores them."""
        with speaking_plainly(self.url), undamaged(self.url):
            return list(self.study.get_trials(deepcopy=False))


def choice_of(trial: Any) -> dict[str, Value]:
    """Return the values of a trial, also of a trial that is queued, or was lost before it drew all values.

    Raises:
        ValueError: the study says what no sweep writes.
    """
    return _CHOICE.validate_python(trial.user_attrs.get(CHOICE) or trial.params)


def _key(choice: Choice) -> str:
    """Return a text that is unique for a choice."""
    return canonical(dict(choice))


def _is_settled(trial: Any) -> bool:
    """Return whether this trial has or will have a result, or was refused for good."""
    import optuna

    state = optuna.trial.TrialState
    return trial.state in {state.RUNNING, state.COMPLETE} or (
        trial.state is state.FAIL and REASON in trial.user_attrs
    )


def _is_orphan(trial: Any) -> bool:
    """Return whether the worker of a running trial was this process, or a process of this machine that has ended."""
    host, _, process = str(trial.user_attrs.get(WORKER, "")).rpartition(":")
    if host != machine() or not process.isdigit():
        return False
    return int(process) == os.getpid() or not is_alive(int(process))
