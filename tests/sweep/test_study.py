"""No trial of a shared study is lost or done twice, whatever moment its worker or its connection dies at."""

from __future__ import annotations

import math
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qdqtool.core.recipe import Recipe, SweepOptions
from qdqtool.errors import BuildError
from qdqtool.pipeline.request import RunRequest
from qdqtool.pipeline.sweep import run, study
from qdqtool.pipeline.sweep.context import SweepRequest
from qdqtool.pipeline.sweep.space import Space
from qdqtool.pipeline.sweep.storage import Storage
from qdqtool.pipeline.sweep.study import Study, TrialWatch

optuna = pytest.importorskip("optuna", reason="sweeps need the extra sweep")
OPTIONS = SweepOptions.model_validate(
    {"space": {"calibrate.method": ["max", "mse", "entropy"]}, "keep_float": [0, 1]}
)


def sampler_of(name: str) -> Any:
    from qdqtool.pipeline.sweep.study import ExpectedGain

    return ExpectedGain() if name == "gain" else optuna.samplers.RandomSampler(seed=0)


Objective = Callable[[Any, Any, Any], tuple[float, float]]


@pytest.fixture(params=["gain", "grid"])
def shared(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Study]:
    storage = Storage(f"sqlite:///{tmp_path / 'study.db'}")
    yield Study(storage, "test", {"model": "m"}, sampler_of(request.param))
    storage.close()


@pytest.fixture
def space() -> Space:
    return Space(OPTIONS, ("conv", "gemm"))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a sign of life, or for a lost storage, takes no time."""
    monkeypatch.setattr(study, "GRACE_S", 0.0)
    monkeypatch.setattr(run, "_PAUSES_S", (0,) * 50)
    monkeypatch.setattr("time.sleep", lambda _seconds: None)


def search(shared: Study, space: Space, objective: Objective, trials: int | None = None) -> list[Any]:
    is_grid = isinstance(shared.study.sampler, optuna.samplers.RandomSampler)
    options = OPTIONS.model_copy(update={"sampler": "grid" if is_grid else "gain"})
    bench = SimpleNamespace(options=options, request=SimpleNamespace(trials=trials), objective=objective)
    shared.watch = TrialWatch()
    return run._search(shared, space, bench, run._silent)  # type: ignore[arg-type]


def fine(_space: Any, choice: Any, _note: Any) -> tuple[float, float]:
    return float(len(str(choice))), 1.0


def complete(trials: list[Any]) -> list[str]:
    return sorted(str(sorted(trial.params.items())) for trial in trials if trial.state.name == "COMPLETE")


def wanted(space: Space) -> list[str]:
    return sorted(str(sorted(choice.items())) for choice in space.grid())


@pytest.mark.usefixtures("impatient")
def test_a_trial_whose_worker_died_before_saying_its_name_is_done_by_another(
    shared: Study, space: Space
) -> None:
    shared.study.ask()
    assert complete(search(shared, space, fine)) == wanted(space)


@pytest.mark.usefixtures("impatient")
def test_a_trial_that_was_lost_half_drawn_is_done_as_it_was_queued(shared: Study, space: Space) -> None:
    first = next(space.grid())
    shared.study.enqueue_trial(first, user_attrs={"choice": first})
    trial = shared.study.ask()
    trial.suggest_categorical("calibrate.method", list(space.values["calibrate.method"]))
    assert complete(search(shared, space, fine)) == wanted(space)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seed", range(4))
def test_a_connection_lost_at_any_statement_loses_no_trial_and_doubles_none(
    shared: Study, space: Space, seed: int
) -> None:
    from sqlalchemy import event
    from sqlalchemy.exc import OperationalError

    moments = random.Random(seed)
    losses = 30

    def lose(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        nonlocal losses
        if losses and moments.random() < 0.03:
            losses -= 1
            raise OperationalError(statement, {}, ConnectionError("lost"))

    event.listen(shared.study._storage._backend.engine, "before_cursor_execute", lose)
    assert complete(search(shared, space, fine)) == wanted(space)
    assert losses < 30


class Death(BaseException):
    """What a process feels when it is killed: it does nothing any more."""


@pytest.mark.usefixtures("impatient")
def test_a_worker_killed_before_any_statement_loses_no_trial_and_doubles_none(
    space: Space, tmp_path: Path
) -> None:
    from sqlalchemy import event

    moments = random.Random(7).sample(range(250), max(6, int(os.environ.get("QDQTOOL_KILLS", "0"))))
    for moment in moments:
        url = f"sqlite:///{tmp_path / f'{moment}.db'}"
        victim, heir = (Study(Storage(url), "test", {}, optuna.samplers.RandomSampler(seed=0)) for _ in "ab")
        left = moment

        def die(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Death

        event.listen(victim.study._storage._backend.engine, "before_cursor_execute", die)
        with suppress(Death):
            search(victim, space, fine)
        assert complete(search(heir, space, fine)) == wanted(space), moment
        for each in (victim, heir):
            each.study._storage._backend.engine.dispose()


def test_choices_that_an_older_release_queued_twice_are_tried_once(shared: Study, space: Space) -> None:
    for choice in [*space.grid(), *space.grid()]:
        shared.study.enqueue_trial(choice, user_attrs={"choice": choice})
    trials = search(shared, space, fine)
    assert complete(trials) == wanted(space)
    assert {trial.state.name for trial in trials} == {"COMPLETE", "PRUNED"}


def test_a_sweep_of_more_trials_goes_on_behind_those_that_are_done(shared: Study, space: Space) -> None:
    for most in (2, 1, 4):
        search(shared, space, fine, most)
    choices = [dict(trial.params) for trial in shared.trials()]
    assert choices == list(space.grid())[:4]


def test_the_last_choice_claimed_by_another_since_the_round_began_is_waited_for(
    shared: Study, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    search(shared, space, fine, trials=5)
    own_step, elsewhere = Study.step, []

    def step_too_late(self: Study, *arguments: Any, **options: Any) -> bool:
        if not elsewhere:
            claimed = self._claim(space, 6, drawn=False)
            assert claimed is not None
            claimed[0].set_user_attr(study.WORKER, "another-machine:1")
            elsewhere.append(claimed[0].number)
            self._mine = None
        return own_step(self, *arguments, **options)

    def ends_elsewhere(_seconds: float) -> None:
        shared._settle(elsewhere[0], optuna.trial.TrialState.COMPLETE, (1.0, 1.0))

    monkeypatch.setattr(Study, "step", step_too_late)
    monkeypatch.setattr("time.sleep", ends_elsewhere)
    assert complete(search(shared, space, fine, trials=6)) == wanted(space)


def test_a_result_that_is_not_a_number_fails_for_good(shared: Study, space: Space) -> None:
    trials = search(shared, space, lambda *_: (math.nan, 1.0))
    assert len(trials) == len(wanted(space))
    assert {trial.state.name for trial in trials} == {"FAIL"}


def test_a_choice_that_the_builder_refuses_is_tried_once(shared: Study, space: Space) -> None:
    def refuse(*_: Any) -> tuple[float, float]:
        raise BuildError("no implementation", fix="none")

    trials = search(shared, space, refuse)
    assert [
        trial.user_attrs["reason"] for trial in trials if "no implementation" in trial.user_attrs["reason"]
    ]
    assert len(trials) == len(wanted(space))


def test_an_interrupt_leaves_the_trial_to_be_done_again(shared: Study, space: Space) -> None:
    def interrupted(*_: Any) -> tuple[float, float]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(shared, space, interrupted)
    assert complete(search(shared, space, fine)) == wanted(space)


def test_only_a_trial_without_a_new_sign_for_long_enough_is_silent() -> None:
    now = [0.0]
    watch = TrialWatch(60.0, lambda: now[0])
    assert watch.silent({1: 0, 2: None}) == []
    now[0] = 59.0
    assert watch.silent({1: 1, 2: None, 3: 7}) == []
    now[0] = 61.0
    assert watch.silent({1: 1, 2: None, 3: 7}) == [2]
    now[0] = 120.0
    assert watch.silent({1: 1, 3: 8}) == [1]


@pytest.mark.usefixtures("impatient")
def test_a_worker_that_was_taken_for_dead_leaves_its_trial_to_the_one_who_took_over(
    shared: Study, space: Space
) -> None:
    seen: list[str] = []

    def given_up(_space: Any, choice: Any, note: Any) -> tuple[float, float]:
        if not seen:
            running = next(trial for trial in shared.trials() if trial.state.name == "RUNNING")
            shared.study.tell(running.number, state=optuna.trial.TrialState.FAIL)
        seen.append(str(sorted(choice.items())))
        if len(seen) % 2:
            note("outcome", {"accuracy": 1.0})
        return fine(_space, choice, note)

    assert complete(search(shared, space, given_up)) == wanted(space)
    assert len(seen) == len(wanted(space)) + 1


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sampler", ["TPESampler", "NSGAIISampler"])
@pytest.mark.parametrize("trials", [None, 5])
def test_a_sampler_that_draws_the_same_again_ends_when_all_is_tried(
    tmp_path: Path, space: Space, sampler: str, trials: int | None
) -> None:
    storage = Storage(f"sqlite:///{tmp_path / 'drawn.db'}")
    drawn = Study(storage, "drawn", {}, getattr(optuna.samplers, sampler)(seed=0))
    options = OPTIONS.model_copy(update={"sampler": "tpe"})
    bench = SimpleNamespace(options=options, request=SimpleNamespace(trials=trials), objective=fine)
    found = complete(run._search(drawn, space, bench, run._silent))  # type: ignore[arg-type]
    assert len(found) == len(set(found)) == (trials or space.size)
    storage.close()


def test_a_worker_of_another_machine_with_the_same_name_is_not_taken_for_dead(shared: Study) -> None:
    trial = shared.study.ask()
    trial.set_user_attr("worker", f"{socket.gethostname()}:4194303")
    shared.revive()
    assert [entry.state.name for entry in shared.trials()] == ["RUNNING"]


def test_the_first_ranking_stays_though_another_worker_was_making_one(shared: Study) -> None:
    def slow() -> list[str]:
        assert shared.agreed("ranking", lambda: ["theirs"]) == ["theirs"]
        return ["mine"]

    assert shared.agreed("ranking", slow) == ["theirs"]
    assert shared.agreed("ranking", lambda: ["late"]) == ["theirs"]


def test_workers_that_finish_their_rankings_at_the_same_instant_agree(shared: Study) -> None:
    together = threading.Barrier(4)

    def rank(number: int) -> list[str]:
        def made() -> list[str]:
            together.wait(timeout=60)
            return [f"made by {number}"]

        return shared.agreed("ranking", made)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(rank, range(4)))
    assert len({tuple(entry) for entry in found}) == 1


def test_an_empty_agreement_is_one_too(shared: Study) -> None:
    assert shared.agreed("reference ms", list) == []
    assert shared.agreed("reference ms", lambda: ["1.5"]) == []


@pytest.mark.parametrize(
    ("address", "file"),
    [
        ("sqlite:///study.db", "study.db"),
        ("sqlite:///a/b.db?timeout=3", "a/b.db"),
        ("sqlite:////tmp/study.db", ""),
        ("sqlite:///:memory:", ""),
        ("postgresql://me:word@host/study", ""),
    ],
)
def test_workers_in_other_folders_use_the_same_file(
    address: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = RunRequest(
        model=Path("m.onnx"),
        recipe=Recipe(),
        samples="random:1",
        eval_samples=None,
        labels=None,
        out=Path("o"),
    )
    sent = run._absolute(SweepRequest(base=base, storage=address))
    assert sent.storage == (address.replace(file, f"{tmp_path}/{file}") if file else address)
