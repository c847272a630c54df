"""What a client of a Dask cluster says when a worker or the scheduler is not what it should be."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from qdqtool.calibration.histograms import Histograms, Span, load_histograms, releases
from qdqtool.calibration.pool import CollectOptions
from qdqtool.core.recipe import PlacementOptions, Recipe
from qdqtool.errors import InputFileError, MissingPackage, SystemFault, UsageError
from qdqtool.pipeline import cluster
from qdqtool.pipeline.calibration import Calibration, CalibrationRequest
from qdqtool.pipeline.cluster import absolute, client_of, collect_on_cluster, collect_shard
from tests import models

FIRST = Span(shard=0, shards=2)


@pytest.fixture
def order(tmp_path: Path) -> CalibrationRequest:
    np.savez(tmp_path / "s.npz", x=np.ones((3, 3, 16, 16), np.float32))
    model = models.save(models.residual_cnn(), tmp_path)
    return CalibrationRequest(model=model, recipe=Recipe(), samples=str(tmp_path / "s.npz"))


def test_a_worker_runs_its_shard(order: CalibrationRequest) -> None:
    found = collect_shard(order, CollectOptions(), FIRST, releases())
    assert (found.samples, found.span) == (2, Span(shard=0, shards=2, total=3, done=2))
    assert found.identity


def test_a_shard_that_fails_fails_again(order: CalibrationRequest, tmp_path: Path) -> None:
    """Dask runs a failed shard again on the same worker, which has the model open."""
    sketch = models.Sketch()
    x = sketch.node("Log", [sketch.input("x", ["N", 4])], "log_y", name="log")
    sketch.output(sketch.node("MatMul", [x, sketch.weight("w", 4, 64)], "y", name="mm"), ["N", 64])
    np.savez(tmp_path / "s.npz", x=np.array([[1, 2, 3, 4], [2, 2, 2, 2], [1, -2, 0, 4]], np.float32))
    asked = replace(
        order,
        model=models.save(sketch.model(), tmp_path, "log.onnx"),
        recipe=Recipe(place=PlacementOptions(skip_rules=("gemv", "narrow"))),
    )
    for _ in range(2):
        with pytest.raises(InputFileError, match="holds 2 NaN or Inf"):
            collect_shard(asked, CollectOptions(), FIRST, releases())
    assert collect_shard(asked, CollectOptions(), replace(FIRST, shard=1), releases()).samples == 1


def test_a_worker_opens_files_again_that_have_changed(order: CalibrationRequest, tmp_path: Path) -> None:
    before = collect_shard(order, CollectOptions(), FIRST, releases())
    np.savez(tmp_path / "s.npz", x=np.full((5, 3, 16, 16), 2, np.float32))
    changed = collect_shard(order, CollectOptions(), FIRST, releases())
    assert (before.samples, changed.samples) == (2, 3)
    assert before.identity["samples"] != changed.identity["samples"]


def test_threads_of_a_worker_open_a_model_once(
    order: CalibrationRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    calibration = cluster.Calibration
    monkeypatch.setattr(cluster, "_kept_open", {})
    monkeypatch.setattr(
        cluster, "Calibration", lambda request: opened.append(request) or calibration(request)
    )
    with ThreadPoolExecutor(4) as pool:
        spans = [Span(shard=shard, shards=4) for shard in range(4)]
        futures = [pool.submit(collect_shard, order, CollectOptions(), span, releases()) for span in spans]
        assert sum(future.result().samples for future in futures) == 3
    assert len(opened) == 1


@pytest.mark.parametrize(("count", "parts"), [(3, 1), (24, 3), (25, 3)])
def test_parts_hold_eight_samples_and_are_written_where_they_are_kept_only(
    count: int, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).standard_normal((count, 3, 16, 16)).astype(np.float32)
    np.savez(tmp_path / "many.npz", x=values)
    model = models.save(models.residual_cnn(), tmp_path)
    request = CalibrationRequest(model=model, recipe=Recipe(), samples=str(tmp_path / "many.npz"))
    seen: list[int] = []

    def computed(
        _: object, wanted: CalibrationRequest, options: CollectOptions, missing: list[int], shards: int
    ) -> Iterator[tuple[int, Histograms]]:
        for shard in missing:
            seen.append(shard)
            yield shard, collect_shard(wanted, options, Span(shard=shard, shards=shards), releases())

    monkeypatch.setattr(cluster, "client_of", lambda _: nullcontext())
    monkeypatch.setattr(cluster, "_compute_shards", computed)
    kept = tmp_path / "kept.npz"
    first = collect_on_cluster(Calibration(request), CollectOptions(), "local", kept)
    assert seen == [*range(parts)]
    monkeypatch.setattr(cluster, "save_histograms", lambda *_: pytest.fail("written to disk"))
    second = collect_on_cluster(Calibration(request), CollectOptions(), "local", None)
    alone = Calibration(request).collect(CollectOptions(), None)
    assert first.tensors == second.tensors == alone.tensors == load_histograms(kept).tensors


def test_a_worker_with_another_release_is_refused(order: CalibrationRequest) -> None:
    wanted = releases() | {"onnxruntime": "1.0.0"}
    with pytest.raises(MissingPackage, match=r"has onnxruntime .*would differ in some bits") as caught:
        collect_shard(order, CollectOptions(), FIRST, wanted)
    assert "onnxruntime 1.0.0" in caught.value.fix
    assert "worker on " in str(caught.value.where)


@pytest.mark.parametrize("lost", ["model.onnx", "s.npz", "feeds.py"])
def test_a_worker_that_does_not_see_a_file_is_told_from_a_missing_file(
    lost: str, order: CalibrationRequest, tmp_path: Path
) -> None:
    samples = order.samples if lost != "feeds.py" else f"{tmp_path}/feeds.py:feeds"
    (tmp_path / lost).unlink(missing_ok=True)
    asked = CalibrationRequest(model=order.model, recipe=order.recipe, samples=samples)
    with pytest.raises(MissingPackage, match=f"cannot access .*{lost}"):
        collect_shard(asked, CollectOptions(), FIRST, releases())


def test_samples_are_the_same_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("s.npz", "feeds.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert absolute("s.npz[:4]") == f"{tmp_path}/s.npz[:4]"
    assert absolute("./s.npz[:4]") == f"{tmp_path}/s.npz[:4]"
    assert absolute("feeds.py:feeds[2:]") == f"{tmp_path}/feeds.py:feeds[2:]"
    (tmp_path / "set [1]").mkdir()
    assert absolute("set [1]") == f"{tmp_path}/set [1]"
    assert absolute("set [1][:4]") == f"{tmp_path}/set [1][:4]"
    assert absolute("random:4") == "random:4"
    assert absolute("package.module:feeds") == "package.module:feeds"


def ended(status: str, outcome: Any = None) -> Any:
    return SimpleNamespace(status=status, result=lambda: outcome, exception=lambda: outcome)


@pytest.mark.parametrize(
    ("future", "error", "words"),
    [
        pytest.param(ended("cancelled"), MissingPackage, "scheduler has stopped", id="the scheduler is gone"),
        pytest.param(
            ended("error", InputFileError("is torn", fix="repair it")),
            InputFileError,
            "is torn",
            id="a wrong sample",
        ),
        pytest.param(
            ended("error", TypeError("unexpected keyword")),
            MissingPackage,
            "cannot run shards: TypeError: unexpected keyword",
            id="a release that knows no shards",
        ),
    ],
)
def test_what_ends_a_shard_is_told_in_words(future: Any, error: type[Exception], words: str) -> None:
    pytest.importorskip("distributed", reason="needs the extra cluster")
    from qdqtool.pipeline.cluster import _result

    with pytest.raises(error, match=words):
        _result(future)


def test_workers_that_keep_dying_are_named() -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
    from qdqtool.pipeline.cluster import _result

    worker = SimpleNamespace(address="tcp://host:1")
    with pytest.raises(MissingPackage, match="died repeatedly"):
        _result(ended("error", distributed.KilledWorker("shard", worker, 3)))


@pytest.mark.parametrize(
    "error", [RuntimeError("Nanny failed to start."), OSError("no port"), asyncio.TimeoutError("late")]
)
def test_workers_that_cannot_start_are_a_fault_of_the_machine(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra cluster")

    def refuse(**_settings: object) -> None:
        raise error

    monkeypatch.setattr(distributed, "LocalCluster", refuse)
    with pytest.raises(SystemFault, match="could not be started") as told, client_of("local"):
        raise AssertionError("there is no client")
    assert told.value.fix


@pytest.mark.parametrize("kind", ["CommClosedError", "CancelledError", "TimeoutError"])
def test_a_cluster_that_is_lost_is_no_mistake_of_qdqtool(kind: str) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
    error = {
        "CommClosedError": distributed.comm.CommClosedError,
        "CancelledError": distributed.CancelledError,
        "TimeoutError": asyncio.TimeoutError,
    }[kind]
    client = SimpleNamespace(scheduler=SimpleNamespace(address="tcp://host:1"))
    with pytest.raises(MissingPackage, match="no longer answers"), cluster._guard_connection(client):
        raise error("gone")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="children are found in /proc")
@pytest.mark.parametrize("after_s", [0.0, 0.3, 1.0])
def test_a_worker_that_is_killed_while_it_starts_ends_in_a_documented_code(
    after_s: float, order: CalibrationRequest, tmp_path: Path
) -> None:
    pytest.importorskip("distributed", reason="needs the extra cluster")
    words = ["calibrate", str(order.model), "--samples", order.samples, "--cluster", "local"]
    process = subprocess.Popen(
        [sys.executable, "-m", "qdqtool", *words, "-o", str(tmp_path / "c.json")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(cluster.__file__).parents[2])},
    )
    while process.poll() is None and not (found := spawned(process.pid)):
        time.sleep(0.01)
    time.sleep(after_s)
    for child in spawned(process.pid) or found:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    _, said = process.communicate(timeout=180)
    assert process.returncode in {0, 3, 5}, said
    assert "mistake in qdqtool" not in said


def spawned(parent: int) -> list[int]:
    """The workers of a process: its children that were made for multiprocessing."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_child = (place / "stat").read_text().rpartition(")")[2].split()[1] == str(parent)
            if is_child and b"spawn_main" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
    return found


STRANGER = """
from qdqtool.pipeline.cluster import client_of
import distributed, os

def code():
    return os.getpid()

def answer(address, security):
    try:
        with distributed.Client(address, timeout="5s", security=security) as stranger:
            return stranger.submit(code).result(timeout=20)
    except (OSError, TypeError) as error:
        return f"refused: {type(error).__name__}"

if __name__ == "__main__":
    with client_of("local") as client:
        workers = client.scheduler_info()["workers"]
        addresses = [client.cluster.scheduler_address, *workers]
        assert client.submit(code).result(timeout=60) != os.getpid()
        for address in addresses:
            plain = address.replace("tls://", "tcp://")
            print(answer(plain, None), answer(address, distributed.Security.temporary()), sep="\\n")
"""


@pytest.mark.slow
def test_other_users_of_this_machine_run_nothing_on_local_workers(tmp_path: Path) -> None:
    """Every process of the machine reaches the ports of local workers, which unpickle what they are sent."""
    pytest.importorskip("distributed", reason="needs the extra cluster")
    program = tmp_path / "stranger.py"
    program.write_text(STRANGER)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) >= 4
    assert all(answer.startswith("refused: ") for answer in answers), answers


def test_an_encrypted_scheduler_without_certificates_is_a_clear_error() -> None:
    pytest.importorskip("distributed", reason="needs the extra cluster")
    with pytest.raises(UsageError, match="requires certificates") as caught, client_of("tls://127.0.0.1:1"):
        pass
    assert "DASK_DISTRIBUTED__COMM__TLS__CA_FILE" in caught.value.fix
