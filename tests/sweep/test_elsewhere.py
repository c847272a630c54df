"""Trials timed on another machine: models and a script go out, times come back, and what they decide is measured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtool.cli.app import run as cli
from qdqtool.core.kinds import SWEEP
from qdqtool.core.sweep import Sweep
from qdqtool.errors import InputFileError
from qdqtool.pipeline.sweep.elsewhere import middle, with_times
from tests.backends.stand_in_trtexec import install
from tests.sweep.digits import result, words

pytest.importorskip("optuna", reason="sweeps need the extra sweep")
SPACE = 'sweep.space={"calibrate.method": [max, mse]}'


def command(out: Path, *more: str) -> list[str]:
    shapes = ("--set", "build.opt_shapes=image:8x1x8x8")
    return words(out, "--set", "sweep.keep_float=[0]", *shapes, *more, space=SPACE)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the finished sweep, and what it exported beside it."""
    folder = tmp_path_factory.mktemp("elsewhere")
    assert cli(command(folder / "sweep", "--export", str(folder / "out"))) == 0
    shutil.copy(folder / "sweep" / "sweep.json", folder / "before.json")
    return folder


def timed(exported: Path, target: Path, release: int) -> Path:
    """The times that the exported script finds with a stand-in for trtexec, from a copy of the folder."""
    shutil.copytree(exported / "out", target)
    trtexec = install(target, release)
    done = subprocess.run(
        [sys.executable, "-I", str(target / "time_trials.py"), "--trtexec", str(trtexec)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target / "times.json"


def found_by(exported: Path) -> Sweep:
    """The sweep as it was before times came back: its trials have the numbers that were exported."""
    return SWEEP.read(exported / "before.json")


@pytest.mark.parametrize("release", [8601, 110100])
def test_times_of_the_script_become_the_measured_times_of_the_sweep(
    release: int, exported: Path, tmp_path: Path
) -> None:
    times = timed(exported, tmp_path / "there", release)
    found = json.loads(times.read_text())
    assert sorted(found["rounds"]) == ["0000", "0001", "float", "float16"]
    assert cli(command(exported / "sweep", "--import", str(times))) == 0
    data = result(exported / "sweep")
    assert (data["speed"], data["device"], data["spread"]) == ("measured", found["gpu"], None)
    assert [(point["name"], point["ms"]) for point in data["floats"]] == [("FP32", 1.02), ("FP16", 1.02)]
    for trial in data["trials"]:
        outcome = trial["outcome"]
        assert outcome["ms_low"] <= outcome["ms"] <= outcome["ms_high"]
        assert outcome["ms"] == pytest.approx(1.02)


def test_a_trial_without_an_engine_there_is_failed_and_says_why(exported: Path, tmp_path: Path) -> None:
    times = timed(exported, tmp_path / "there", 101600)
    found = json.loads(times.read_text())
    del found["rounds"]["0001"]
    found["failed"]["0001"] = "no implementation for node conv"
    times.write_text(json.dumps(found))
    timed_there = with_times(found_by(exported), times)
    assert [trial.state for trial in timed_there.trials] == ["complete", "failed"]
    assert "no implementation for node conv" in timed_there.trials[1].reason
    assert [trial.number for trial in timed_there.pareto] == [0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"digest": "another"}, "another sweep"),
        ({"rounds": {"0000": [0.0]}}, "not a valid time"),
        ({"rounds": {"0000": ["quick"]}}, "not a file of times"),
        ({"rounds": None}, "not a file of times"),
    ],
    ids=["another sweep", "a time of zero", "words", "nothing"],
)
def test_times_that_cannot_be_are_refused(
    change: dict[str, object], said: str, exported: Path, tmp_path: Path
) -> None:
    manifest = json.loads((exported / "out" / "manifest.json").read_text())
    good = {"digest": manifest["digest"], "gpu": "GPU", "rounds": {"0000": [1.0]}, "failed": {}}
    path = tmp_path / "times.json"
    path.write_text(json.dumps({**good, **change}))
    with pytest.raises(InputFileError, match=said):
        with_times(found_by(exported), path)


def test_engines_run_with_the_shapes_that_they_were_built_for(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else trtexec makes free dimensions 1, which an engine for a batch of 8 refuses."""
    monkeypatch.setenv("STAND_IN_SAID", str(tmp_path / "said"))
    timed(exported, tmp_path / "there", 101600)
    manifest = json.loads((exported / "out" / "manifest.json").read_text())
    (shapes,) = {model["shapes"] for model in manifest["models"]}
    said = (tmp_path / "said").read_text().splitlines()
    assert any(word.startswith("--loadEngine=") for word in said)
    assert shapes == "image:8x1x8x8"
    assert f"--shapes={shapes}" in said


def test_an_engine_that_does_not_run_leaves_the_times_of_the_others(exported: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    shutil.copytree(exported / "out", target)
    trtexec = install(target, 101600)
    wrapper = target / "trtexec-without-0001"
    wrapper.write_text(
        "#!/bin/sh\ncase \"$*\" in *--loadEngine=*0001.plan*) echo '[E] out of memory'; exit 1;; esac\n"
        f'exec {trtexec} "$@"\n'
    )
    wrapper.chmod(0o755)
    script = [
        sys.executable,
        "-I",
        str(target / "time_trials.py"),
        "--trtexec",
        str(wrapper),
        "--rounds",
        "2",
    ]
    done = subprocess.run(script, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((target / "times.json").read_text())
    assert sorted(found["rounds"]) == ["0000", "float", "float16"]
    assert found["failed"] == {"0001": "[E] out of memory"}


def test_the_file_that_is_named_is_the_one_that_the_script_writes(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(command(exported / "sweep", "--export", str(tmp_path / "again"))) == 0
    assert f"--import {tmp_path / 'again' / 'times.json'}" in capsys.readouterr().out


def test_without_trtexec_the_script_says_how_to_name_it(exported: Path) -> None:
    script = exported / "out" / "time_trials.py"
    done = subprocess.run(
        [sys.executable, "-I", str(script), "--trtexec", "/nowhere/trtexec"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert "--trtexec PATH" in done.stderr


@given(st.lists(st.floats(0.01, 1e6), min_size=1, max_size=40))
def test_the_interval_of_a_median_holds_it_and_lies_within_the_values(values: list[float]) -> None:
    ms, low, high = middle(values)
    assert (low is None) == (high is None) == (len(values) < 6)
    if low is not None and high is not None:
        assert min(values) <= low <= ms <= high <= max(values)
