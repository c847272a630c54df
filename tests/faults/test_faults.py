"""A fault of the system at any point of a command loses nothing; benchmarks/faults.py tries all of them."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="points are named with /proc")


def tried(*words: str) -> dict[str, int]:
    """What benchmarks/faults.py counts; skips where its first line says that it cannot run here."""
    done = subprocess.run(
        [sys.executable, "benchmarks/faults.py", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if "skipped" in done.stdout:
        pytest.skip(done.stdout.splitlines()[0])
    assert done.returncode == 0, done.stdout + done.stderr
    last: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert (last["lost"], last["differs"], last["wrong"]) == (0, 0, 0)
    return last


@pytest.mark.parametrize("command", ["quantize", "calibrate", "run", "fix", "sweep", "qat"])
def test_nothing_is_lost_at_one_point_of_each_kind(command: str) -> None:
    assert tried("--quick", "--commands", command)["points"] > 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("point", "fault"),
    [("main fsync fixed/.qdqtool-draft-*/build.log", "EIO"), ("main lock fixed/.lock 1", "ENOLCK")],
    ids=["while the new folder is filled", "while its lock is given back"],
)
def test_fix_goes_on_after_the_disk_failed_it(point: str, fault: str) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    assert tried("--commands", "fix", "--only", point, "--faults", fault)["points"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["EIO", "kill"])
def test_a_database_whose_making_is_cut_short_is_made_again(fault: str) -> None:
    """SQLite commits every table alone: one without its index took two studies of one name, for good."""
    pytest.importorskip("optuna", reason="sweeps need the extra sweep")
    words = ("--commands", "sweep", "--only", "main sql CREATE UNIQUE INDEX", "--faults", fault)
    assert tried(*words)["points"] == 1


def test_a_database_in_the_middle_of_a_change_is_judged_with_its_journal(tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as opened:
        opened.execute("pragma cache_size = 1")
        opened.execute("create table t (x)")
        opened.execute("create index i on t (x)")
        opened.executemany("insert into t values (?)", [(f"{number:03}" * 1000,) for number in range(50)])
        opened.execute("begin")
        opened.execute("update t set x = 'b' || x")
        content, journal = path.read_bytes(), path.with_name("study.db-journal").read_bytes()
    code = (
        "from tests.faults import trials\n"
        "import sys; content, journal = map(bytes.fromhex, sys.stdin.read().split())\n"
        "print(trials._rows(content), trials._rows(content, journal), trials._reads('study.db', b'', journal))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input=f"{content.hex()} {journal.hex()}",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["None", "[]", "False"]


def test_a_fault_that_does_lose_something_is_counted(tmp_path: Path) -> None:
    """The counting itself: a command that writes its file in place is caught."""
    code = (
        "from tests.faults import points; points.install()\n"
        "from pathlib import Path\n"
        "from tests.faults import trials\n"
        "trials.run_command = lambda words: Path(words[0]).write_bytes(b'x' * 100_000) and 0\n"
        "command = trials.Command(('t.bin',), lambda folder: None)\n"
        "reference = trials.undisturbed(command)\n"
        "print([trials.trial(command, reference, point, 'kill').lost for point in reference.points])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "t.bin is visible and half-written" in done.stdout
