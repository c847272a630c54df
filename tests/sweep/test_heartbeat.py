"""Why a sweep has a heartbeat of its own: what optuna's would leave undone."""

from __future__ import annotations

from pathlib import Path

import pytest

optuna = pytest.importorskip("optuna", reason="sweeps need the extra sweep")


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.filterwarnings("ignore:Heartbeat of storage is supposed to be used with Study.optimize")
def test_optuna_never_gives_up_a_trial_whose_worker_died_before_its_first_beat(tmp_path: Path) -> None:
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{tmp_path / 'study.db'}", heartbeat_interval=1, grace_period=1
    )
    study = optuna.create_study(storage=storage)
    silent, seen = study.ask(), study.ask()
    storage.record_heartbeat(seen._trial_id)
    with storage.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE trial_heartbeats SET heartbeat = '2001-01-01 00:00:00'")

    optuna.storages.fail_stale_trials(study)

    states = {trial.number: trial.state.name for trial in study.trials}
    assert states == {silent.number: "RUNNING", seen.number: "FAIL"}
