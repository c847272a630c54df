"""Workers that begin at the same moment share a study exactly: every choice is one trial, and no trial is for nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.sweep.digits import ROOT
from tests.sweep.postgres import server

pytest.importorskip("optuna", reason="sweeps need the extra sweep")
WORKERS = 5
CHOICES = 24
WORK = f"""
import json, sys, time
from types import SimpleNamespace
import optuna
from qdqtool.core.recipe import SweepOptions
from qdqtool.pipeline.sweep import run
from qdqtool.pipeline.sweep.space import Space
from qdqtool.pipeline.sweep.storage import Storage
from qdqtool.pipeline.sweep.study import Study

url, begin, sampler = sys.argv[1], float(sys.argv[2]), sys.argv[3]
run._WAIT_S = 0.05
options = SweepOptions.model_validate(
    {{"space": {{"calibrate.percentile": [90 + n / 10 for n in range({CHOICES})]}}, "keep_float": [0], "sampler": sampler}}
)
space = Space(options, ("conv",))
kinds = {{"grid": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}}
time.sleep(max(0, begin - time.time()))
study = run._persevering(lambda: Study(Storage(url), "test", {{}}, kinds[sampler](seed=0)))
bench = SimpleNamespace(
    options=options,
    request=SimpleNamespace(trials={CHOICES}),
    objective=lambda _space, choice, _note: (choice["calibrate.percentile"], 1.0),
)
trials = run._search(study, space, bench, run._silent)
print(json.dumps([[trial.state.name, trial.params.get("calibrate.percentile")] for trial in trials]))
"""


def tried_by_all(url: str, sampler: str) -> list[list[tuple[str, float]]]:
    """What each of the workers sees in the end; all of them begin at one moment."""
    begin = time.time() + 6
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORK, url, str(begin), sampler], cwd=ROOT, stdout=subprocess.PIPE
        )
        for _ in range(WORKERS)
    ]
    said = [worker.communicate(timeout=600)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * WORKERS
    return [json.loads(one) for one in said]


def is_exact(seen: list[tuple[str, float]], *, drawn: bool) -> bool:
    complete = Counter(choice for state, choice in seen if state == "COMPLETE")
    rest = {state for state, _ in seen if state != "COMPLETE"}
    # A sampler may draw a choice that is taken, which is known before any work is done.
    return (
        len(complete) == CHOICES
        and set(complete.values()) == {1}
        and rest <= ({"PRUNED"} if drawn else set())
    )


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["grid", "tpe"])
def test_every_choice_is_one_trial_on_sqlite(sampler: str, tmp_path: Path) -> None:
    seen = tried_by_all(f"sqlite:///{tmp_path / 'study.db'}", sampler)
    assert all(is_exact(one, drawn=sampler != "grid") for one in seen), seen


@pytest.mark.slow
def test_every_choice_is_one_trial_on_postgresql() -> None:
    pytest.importorskip("psycopg")
    with server() as url:
        seen = tried_by_all(url, "grid")
    assert all(is_exact(one, drawn=False) for one in seen), seen
