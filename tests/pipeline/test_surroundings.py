"""The same inputs give the same bytes wherever, whenever and for whom a command runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from tests import models

ROOT = Path(__file__).resolve().parents[2]
TIMED = {"build.log", "log.json", "steps.json"}
"""The documented exception: files of a run folder that hold the builder's and our own times."""
TYPED = ("report.json", "report.html")
"""Files that repeat the command of the run."""
posix = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX system")


def inputs(folder: Path) -> tuple[str, str]:
    """A small network and samples for it."""
    path = models.save(models.conv_chain(), folder)
    dice = np.random.default_rng(0)
    np.savez(folder / "s.npz", x=dice.standard_normal((6, 8, 8, 8)).astype(np.float32))
    return str(path), str(folder / "s.npz")


def command(*words: str, env: Mapping[str, str] | None = None, **more: object) -> subprocess.CompletedProcess:
    """A command in a process of its own; its name on the disk does not matter to it."""
    own = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    own = {key: value for key, value in own.items() if value}
    done = subprocess.run(
        [sys.executable, "-m", "qdqtool", *words],
        env=own,
        capture_output=True,
        text=True,
        check=False,
        **more,
    )
    assert done.returncode == 0, done.stderr
    return done


def made(
    where: Path, env: Mapping[str, str] | None = None, more: tuple[str, ...] = (), **keywords: object
) -> dict[str, bytes]:
    """Every file that `calibrate --method all` and `run` write, but those that hold times."""
    model, samples = inputs(where)
    table, out = str(where / "t.json"), str(where / "out")
    command(
        "calibrate", model, "--samples", samples, "--method", "all", "-o", table, *more, env=env, **keywords
    )
    last = "run" if _builds() else "quantize"
    target = out if _builds() else f"{out}/model.qdq.onnx"
    command(last, model, "--samples", samples, "--out", target, env=env, **keywords)
    files = (path for path in where.rglob("*") if path.is_file() and path.name not in TIMED)
    return {str(path.relative_to(where)): content_of(path, where) for path in files}


def content_of(path: Path, where: Path) -> bytes:
    """The bytes of a file. The command of a report that settles a doubt names files as they were typed: FOLDER stands for them."""
    if path.name == "provenance.json":
        document = json.loads(path.read_bytes())
        for name in TYPED:
            assert document["data"]["files"].pop(name)
        return json.dumps(document).encode()
    content = path.read_bytes()
    return content.replace(str(where).encode(), b"FOLDER") if path.name in TYPED else content


def _builds() -> bool:
    import importlib.util

    return importlib.util.find_spec("tensorrt_rtx") is not None


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What is written in the usual surroundings."""
    return made(tmp_path_factory.mktemp("usual"))


def _locale(name: str, folder: Path) -> dict[str, str]:
    """A locale that is compiled here, because images of containers bring none."""
    language = name.partition(".")[0]
    try:
        subprocess.run(
            ["localedef", "-i", language, "-f", "UTF-8", str(folder / name)], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs localedef and its sources (Debian package locales)")
    return {"LOCPATH": str(folder), "LC_ALL": name, "LANG": name}


def _nowhere(folder: Path) -> dict[str, str]:
    (folder / "file").write_text("no folder")
    return {"HOME": str(folder / "gone"), "TMPDIR": str(folder / "file"), "XDG_CACHE_HOME": "/proc/none"}


SURROUNDINGS: dict[str, Callable[[Path], Mapping[str, str]]] = {
    "another hash seed": lambda _: {"PYTHONHASHSEED": "12345"},
    "one thread": lambda _: {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    "four threads": lambda _: {"OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "4"},
    "Turkish": lambda folder: _locale("tr_TR.UTF-8", folder),
    "German": lambda folder: _locale("de_DE.UTF-8", folder),
    "no home and no folder for temporary files": _nowhere,
    "another time zone and Python's debug mode": lambda _: {"TZ": "Asia/Kathmandu", "PYTHONDEVMODE": "1"},
}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_environment_changes_no_byte(
    name: str, usual: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    env = SURROUNDINGS[name](tmp_path_factory.mktemp("environment"))
    threads = ("--threads", "1") if name == "one thread" else ()
    found = made(tmp_path_factory.mktemp("other"), env=env, more=threads)
    assert found == usual


@posix
def test_another_working_folder_and_a_narrow_umask_change_no_byte(
    usual: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    where = tmp_path_factory.mktemp("narrow")
    found = made(where, cwd="/", umask=0o077)
    assert found == usual
    written = [path for path in where.rglob("*.json") if path.name != ".lock"]
    assert written
    assert {path.stat().st_mode & 0o777 for path in written} == {0o600}, "what the user's umask says"


def test_the_order_of_the_samples_changes_no_range_of_one_method(
    usual: dict[str, bytes], tmp_path: Path
) -> None:
    """`auto` is the documented exception: it chooses on some samples and checks its choice on the others.

    Corrections of biases are means, whose last digits depend on the order of the sum.
    """
    model, samples = inputs(tmp_path)
    turned = tmp_path / "turned.npz"
    np.savez(turned, x=np.load(samples)["x"][np.random.default_rng(1).permutation(6)])
    command("calibrate", model, "--samples", str(turned), "--method", "all", "-o", str(tmp_path / "t.json"))
    tables = sorted(name for name in usual if name.startswith("t.") and name.endswith(".json"))
    tables = [name for name in tables if name not in {"t.json", "t.auto.json"}]
    assert len(tables) > 5
    for name in tables:
        one, other = (json.loads(text) for text in (usual[name], (tmp_path / name).read_bytes()))
        assert (one["data"].pop("source"), other["data"].pop("source")) == ("s.npz", "turned.npz")
        for shift, turned_shift in zip(one["data"].pop("shifts"), other["data"].pop("shifts"), strict=True):
            assert shift["node"] == turned_shift["node"]
            np.testing.assert_allclose(shift["shift"], turned_shift["shift"], rtol=1e-6, atol=1e-9)
        assert one["data"] == other["data"], name


def test_a_path_as_long_as_the_system_takes_is_written(tmp_path: Path) -> None:
    model, samples = inputs(tmp_path)
    folder = tmp_path
    while len(str(folder)) < 3600:
        folder /= "d" * 200
    name = "q" * 250 + ".onnx"
    command("quantize", model, "--samples", samples, "-o", str(folder / name))
    assert [path.name for path in folder.iterdir()] == [name]


def test_a_name_in_another_case_is_the_same_file_where_the_system_says_so(tmp_path: Path) -> None:
    model, samples = inputs(tmp_path)
    before = Path(model).read_bytes()
    # a second name of one file is all that a file system without cases is
    os.link(model, tmp_path / "MODEL.ONNX")
    command("quantize", str(tmp_path / "MODEL.ONNX"), "--samples", samples, "-o", str(tmp_path / "q.onnx"))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "qdqtool",
            "quantize",
            model,
            "--samples",
            samples,
            "-o",
            str(tmp_path / "MODEL.ONNX"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 2, "the input is never overwritten"
    assert Path(model).read_bytes() == before


def test_a_clock_that_jumps_back_or_ahead_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdqtool.cli.app import run

    model, samples = inputs(tmp_path)
    assert run(["quantize", model, "--samples", samples, "-o", str(tmp_path / "usual.onnx")]) == 0
    real, calls = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + (-1) ** next(calls) * 10**8)
    for _ in range(2):
        assert run(["quantize", model, "--samples", samples, "-o", str(tmp_path / "q.onnx")]) == 0
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "usual.onnx").read_bytes()


def test_two_processes_that_write_one_file_leave_one_of_their_files_whole(tmp_path: Path) -> None:
    model, samples = inputs(tmp_path)
    words = [sys.executable, "-m", "qdqtool", "calibrate", model, "--samples", samples, "-o"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [
        subprocess.Popen([*words, str(tmp_path / "t.json")], env=env, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.wait(120) for process in both] == [0, 0]
    command(*words[3:], str(tmp_path / "alone.json"))
    assert (tmp_path / "t.json").read_bytes() == (tmp_path / "alone.json").read_bytes()
    assert not list(tmp_path.glob(".*draft*"))


def test_a_second_run_in_the_same_folder_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    from qdqtool.errors import UsageError
    from qdqtool.pipeline.request import RunFolder

    with RunFolder(tmp_path).locked():
        (tmp_path / "placement.json").write_text("of the first")
        with (
            pytest.raises(UsageError, match="another run is using this folder"),
            RunFolder(tmp_path).locked(),
        ):
            pass
    assert (tmp_path / "placement.json").read_text() == "of the first"


@posix
def test_a_file_system_without_locks_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import errno
    import fcntl

    from qdqtool.io.files import drafting
    from qdqtool.pipeline.request import RunFolder

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with RunFolder(tmp_path).locked(), drafting(tmp_path) as drafts:
        (drafts / "x").write_text("y")
    assert "this file system has no locks" in caplog.text
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == []
