"""Damaged files of every kind are read or refused with a fix; none crashes, none takes a gigabyte.

`make fuzz MINUTES=n` tries as many as n minutes allow; here are some of each, and the files that once went wrong.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.readers import READERS
from tests.fuzz.worker import attempt

CRASHERS = Path(__file__).parent / "crashers"
COUNTS = {"onnx": 25, "commands": 10, "builds": 4, "artefacts": 60, "logs": 20, "recipes": 40}
NEEDS_A_RUN = {"builds", "archives", "artefacts", "layers", "logs"}


@pytest.mark.parametrize("name", sorted(set(READERS) - NEEDS_A_RUN))
def test_damaged_files_are_read_or_refused(name: str, tmp_path: Path) -> None:
    seeds = sorted(READERS[name].seeds().items())
    for number in range(COUNTS.get(name, 150)):
        dice = random.Random(f"{name} test {number}")
        file, content = dice.choice(seeds)
        path = tmp_path / f"input{Path(file).suffix}"
        path.write_bytes(READERS[name].damage(content, dice))
        found = attempt(name, path)
        assert found["result"] in {"ok", "refused"}, (number, found)
        assert not found["over_memory"], number


@pytest.mark.slow
@pytest.mark.rtx
@pytest.mark.parametrize("name", sorted(NEEDS_A_RUN))
def test_damaged_files_of_a_run_folder_are_read_or_refused(name: str, tmp_path: Path) -> None:
    test_damaged_files_are_read_or_refused(name, tmp_path)


@pytest.mark.parametrize("path", sorted(CRASHERS.iterdir()), ids=lambda path: path.name)
def test_what_once_went_wrong_is_refused_or_read(path: Path, tmp_path: Path) -> None:
    name = path.name.partition("-")[0]
    copy = tmp_path / f"input{path.suffix}"
    copy.write_bytes(path.read_bytes())
    found = attempt(name, copy)
    assert found["result"] in {"ok", "refused"}, found
    assert not found["over_memory"]


REPEATED = {
    "layers of empty lines": ("layers", "\n" * 300_000),
    "layers with empty lines behind a record": (
        "layers",
        "Name: a, LayerType: b, Inputs: [], Outputs: []\n" + "\n" * 300_000 + "x",
    ),
    "profile with a row of blanks": (
        "profiles",
        "=== Profile (5 iterations ) ===\nLayer Time (ms)\na" + " " * 300_000 + "b\n",
    ),
    "labels in a cell without end": ("labels", "a,b\n" + "a" * 300_000 + ",1\n"),
}


@pytest.mark.parametrize("name", REPEATED)
def test_what_is_repeated_is_looked_through_once(name: str, tmp_path: Path) -> None:
    """Each of them took minutes, or ended in an internal error: some tenths of a megabyte."""
    reader, content = REPEATED[name]
    path = tmp_path / "input.txt"
    path.write_text(content)
    found = attempt(reader, path)
    assert found["result"] in {"ok", "refused"}, found
    assert not found["slow"]


@pytest.mark.slow
def test_the_benchmark_counts_and_prints_one_line_for_scripts() -> None:
    program = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"
    done = subprocess.run(
        [sys.executable, str(program), "--inputs", "600", "--readers", "caches,labels", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert summary["inputs"] == 1200
    assert [counts["inputs"] for counts in summary["by_reader"].values()] == [600, 600]
    assert done.returncode == (
        1 if any(summary[key] for key in ("crashes", "internal_errors", "over_memory", "hangs")) else 0
    )
