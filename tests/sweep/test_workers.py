"""Sweeps survive: killed workers, lost connections, full disks; many workers find what one finds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from qdqtool.cli.app import run as cli
from tests.sweep.digits import DIGITS, METHODS, ROOT, essence, result, settings_of, words
from tests.sweep.postgres import restartable, server

pytest.importorskip("optuna", reason="sweeps need the extra sweep")
pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
pytestmark = pytest.mark.rtx
Start = Callable[[list[str]], "subprocess.Popen[bytes]"]
WIDE = (
    'sweep.space={"calibrate.method": [max, mse, entropy, percentile], "calibrate.weights": [max, mse], '
    '"calibrate.bias": [keep, correct]}'
)
SMALL = 'sweep.space={"calibrate.method": [max, mse]}'


def arguments(out: Path, *more: str) -> list[str]:
    """A sweep with engines, four trials."""
    return words(out, *more, speed="estimated", space=SMALL)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts workers, and ends those that a failing test leaves behind."""
    started: list[subprocess.Popen[bytes]] = []

    def worker(call: list[str]) -> subprocess.Popen[bytes]:
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "qdqtool", *call],
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        )
        return started[-1]

    yield worker
    for process in started:
        if process.poll() is None:
            kill(process)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said.decode()


def kill(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "alone"
    assert cli(arguments(out, "--pick", "min-accuracy 1")) == 0
    return out


def test_a_sweep_tries_the_whole_grid_and_keeps_a_run_folder_for_each_pareto_point(alone: Path) -> None:
    data = result(alone)
    assert len(settings_of(data)) == len(set(settings_of(data))) == 4
    for trial in data["pareto"]:
        folder = alone / "pareto" / f"{trial['number']:04}"
        assert (folder / "model.qdq.onnx").is_file()
        assert (folder / "recipe.yaml").is_file()
    assert (alone / "pick" / "engine.plan").is_file()
    assert (alone / "sweep.html").is_file()


def test_the_picked_recipe_reproduces_the_model_exactly(alone: Path, tmp_path: Path) -> None:
    again = [
        "run",
        str(DIGITS / "digits.onnx"),
        "--recipe",
        str(alone / "pick" / "recipe.yaml"),
        "--samples",
        f"{DIGITS / 'calibration.npz'}[:16]",
        "--eval-samples",
        f"{DIGITS / 'evaluation.npz'}[:64]",
        "--out",
        str(tmp_path / "again"),
    ]
    assert cli(again) == 0
    assert (tmp_path / "again" / "model.qdq.onnx").read_bytes() == (
        alone / "pick" / "model.qdq.onnx"
    ).read_bytes()


def test_a_finished_sweep_does_nothing_more(alone: Path) -> None:
    before = result(alone)
    assert cli(arguments(alone)) == 0
    assert result(alone) == before


def test_a_study_of_other_inputs_is_refused(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--storage", f"sqlite:///{alone / 'study.db'}", "--set", "place.first_layer=float")
    assert cli(arguments(tmp_path / "other", *more)) == 2
    assert "another recipe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "code"),
    [("nonsense", 2), ("nosuch://host/db", 2), ("postgresql://someone:secret@127.0.0.1:1/db", 5)],
    ids=["no address", "unknown kind", "nobody answers"],
)
def test_a_bad_storage_is_a_clear_error_without_the_password(
    url: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(arguments(tmp_path / "x", "--storage", url)) == code
    said = capsys.readouterr().err
    assert "fix:" in said
    assert "secret" not in said


def test_a_sweep_killed_again_and_again_ends_with_the_same_result(
    alone: Path, tmp_path: Path, start: Start
) -> None:
    out = tmp_path / "killed"
    moments = random.Random(4)
    for _ in range(int(os.environ.get("QDQTOOL_KILLS", "2"))):
        process = start(arguments(out))
        time.sleep(moments.uniform(1.0, 6.0))
        kill(process)
    finish(start(arguments(out)))
    assert essence(result(out)) == essence(result(alone))
    assert settings_of(result(out)) == settings_of(result(alone))


@pytest.mark.slow
def test_workers_that_share_a_folder_all_end_well(tmp_path: Path, start: Start) -> None:
    """They evaluate the float model and keep the Pareto points in the same places at the same time."""
    for process in [start(words(tmp_path / "one")) for _ in range(3)]:
        finish(process)
    choices = settings_of(result(tmp_path / "one"))
    assert len(choices) == len(set(choices)) > 1


def test_four_workers_on_postgresql_find_what_one_finds_though_one_is_killed_and_one_loses_its_connection(
    tmp_path: Path, start: Start
) -> None:
    psycopg = pytest.importorskip("psycopg")
    assert cli(words(tmp_path / "alone")) == 0
    with server() as url:
        workers = [start(words(tmp_path / f"worker{number}", "--storage", url)) for number in range(4)]
        with psycopg.connect(url, autocommit=True) as connection:
            victim = at_work(connection, workers)
            kill(victim)
            workers.remove(victim)
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = 'postgres' limit 2"
            )
        for process in workers:
            finish(process)
        for out in sorted(tmp_path.glob("worker*/sweep.json")):
            data = result(out.parent)
            assert essence(data) == essence(result(tmp_path / "alone"))
            assert settings_of(data) == settings_of(result(tmp_path / "alone"))
    assert len(list(tmp_path.glob("worker*/sweep.json"))) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before the first connection", "in a trial"])
def test_a_sweep_outlives_a_server_that_restarts(tmp_path: Path, start: Start, moment: str) -> None:
    """PostgreSQL is ended by its process number and is away for three seconds."""
    psycopg = pytest.importorskip("psycopg")
    assert cli(words(tmp_path / "alone")) == 0
    with restartable() as database:
        call = words(tmp_path / "worker", "--storage", database.address)
        if moment == "in a trial":
            process = start(call)
            with psycopg.connect(database.address, autocommit=True) as connection:
                at_work(connection, [process])
            database.stop()
        else:
            database.stop()
            process = start(call)
            wait_for_words(process)
        time.sleep(3)
        assert process.poll() is None, "the sweep gave up"
        database.start()
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said.decode()
    assert essence(result(tmp_path / "worker")) == essence(result(tmp_path / "alone"))


def wait_for_words(process: subprocess.Popen[bytes]) -> None:
    """Until a worker says that it tries again."""
    assert process.stderr is not None
    for line in process.stderr:
        if b"trying again" in line:
            return
    raise AssertionError("the sweep ended without a try")


def test_workers_that_die_and_lose_their_connections_all_the_time_find_what_one_finds(
    tmp_path: Path, start: Start
) -> None:
    psycopg = pytest.importorskip("psycopg")
    harms = int(os.environ.get("QDQTOOL_KILLS", "2"))
    assert cli(words(tmp_path / "alone", space=WIDE if harms > 2 else METHODS)) == 0
    moments = random.Random(8)
    with server() as url:

        def hire(number: int) -> subprocess.Popen[bytes]:
            call = words(tmp_path / f"worker{number}", "--storage", url, space=WIDE if harms > 2 else METHODS)
            return start(call)

        workers = [hire(number) for number in range(3)]
        with psycopg.connect(url, autocommit=True) as connection:
            for number in range(harms):
                time.sleep(moments.uniform(0.2, 3.0))
                if number % 2:
                    connection.execute(
                        "select pg_terminate_backend(pid) from pg_stat_activity "
                        "where pid <> pg_backend_pid() and datname = 'postgres'"
                    )
                    continue
                kill(workers.pop(moments.randrange(len(workers))))
                workers.append(hire(3 + number))
        for process in workers:
            finish(process)
        results = [result(out.parent) for out in sorted(tmp_path.glob("worker*/sweep.json"))]
    assert len(results) >= len(workers)
    for data in results:
        assert essence(data) == essence(result(tmp_path / "alone"))
        assert settings_of(data) == settings_of(result(tmp_path / "alone"))


def at_work(connection: Any, workers: list[subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """The first of these workers that is seen in the middle of a trial."""
    psycopg = pytest.importorskip("psycopg")
    for _ in range(1200):
        with suppress(psycopg.errors.UndefinedTable):
            rows = connection.execute(
                "select a.value_json from trials t join trial_user_attributes a on a.trial_id = t.trial_id "
                "where t.state = 'RUNNING' and a.key = 'worker'"
            ).fetchall()
            numbers = {int(row[0].strip('"').rpartition(":")[2]) for row in rows}
            found = next((process for process in workers if process.pid in numbers), None)
            if found is not None:
                return found
        time.sleep(0.05)
    raise AssertionError("no worker began a trial within a minute")
