"""Sweeps that build no engine: latency measured on the CPU, or accuracy alone; on Dask; on a full disk; bad inputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run as cli
from tests.sweep.digits import MODEL, ROOT, SAMPLES, essence, result, settings_of, words

pytest.importorskip("optuna", reason="sweeps need the extra sweep")
TYPES = 'sweep.space={"place.per_channel": [true, false], "insert.types": [fp32, fp16], "calibrate.bias": [keep, correct]}'


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("accuracy") / "alone"
    assert cli(words(out)) == 0
    return out


def test_without_times_the_most_accurate_trial_is_the_front(alone: Path) -> None:
    data = result(alone)
    best = max(trial["outcome"]["accuracy"] for trial in data["trials"])
    assert [trial["outcome"]["accuracy"] for trial in data["pareto"]] == [best]
    assert len(settings_of(data)) == 8
    folder = alone / "pareto" / f"{data['pareto'][0]['number']:04}"
    assert (folder / "model.qdq.onnx").is_file()
    assert (folder / "recipe.yaml").is_file()


def test_a_finished_sweep_is_drawn_against_the_share_of_quantized_nodes(alone: Path, tmp_path: Path) -> None:
    assert cli(words(alone, "--chart", str(tmp_path / "pareto.svg"))) == 0
    drawing = (tmp_path / "pareto.svg").read_text("utf-8")
    assert "quantized compute nodes" in drawing
    assert drawing.count('class="dot ') == 9  # FP16 is one of them
    assert drawing.count('class="span ') == 2
    assert "calibrate.method=max" in drawing
    assert '<tr class="best">' in (alone / "sweep.html").read_text("utf-8")


def test_kept_nodes_are_the_first_of_the_sensitivity_study(alone: Path) -> None:

    study = json.loads((alone / "base" / "sensitivity.json").read_text("utf-8"))["data"]
    ranked = [node["node"] for node in study["nodes"]]
    kept = {tuple(trial["outcome"]["kept_float"]) for trial in result(alone)["trials"]}
    assert kept == {(), tuple(ranked[:2])}


def test_nodes_are_ranked_against_the_true_float_model_though_biases_are_corrected(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = alone / "base"
    whole = json.loads((base / "sensitivity.json").read_text("utf-8"))["data"]["whole"]
    sides = [str(base / name) for name in ("model.prepared.onnx", "model.qdq.onnx")]
    capsys.readouterr()
    assert cli(["compare", *sides, "--samples", SAMPLES, "--set", "compare.task=none", "--json"]) == 0
    (output,) = json.loads(capsys.readouterr().out)["data"]["outputs"]
    level = next(measure["value"] for measure in output["measures"] if measure["metric"] == "sqnr_db")
    # sensitivity measures without zero points, which only take noise away
    assert 0 < whole["sqnr_db"] < level + 0.05
    assert json.loads((base / "calibration.json").read_text("utf-8"))["data"]["shifts"]


def test_without_times_a_limit_on_time_is_refused(alone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(words(alone, "--pick", "max-ms 1")) == 2
    assert "no times" in capsys.readouterr().err


def test_measured_latency_has_an_interval_and_says_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = 'sweep.space={"calibrate.method": [max, mse]}'
    more = ("--set", "sweep.keep_float=[0]", "--pick", "min-accuracy 1")
    assert cli(words(tmp_path / "out", *more, speed="measured", space=space)) == 0
    data = result(tmp_path / "out")
    assert (data["speed"], data["spread"], data["device"]) == ("measured", None, "onnxruntime's CPU")
    for trial in data["trials"]:
        found = trial["outcome"]
        assert 0 < found["ms_low"] <= found["ms"] <= found["ms_high"]
        assert found["kernels"] is None
    assert (tmp_path / "out" / "pick" / "model.qdq.onnx").is_file()
    assert "ms [measured]" in capsys.readouterr().out.replace("\n", " ")


def test_types_scales_and_biases_can_be_searched(tmp_path: Path) -> None:
    # rounding by the outputs may make more of one scale than of one per channel
    more = ("--set", "sweep.keep_float=[0]", "--set", "weights.rounding=nearest")
    assert cli(words(tmp_path / "out", *more, space=TYPES)) == 0
    data = result(tmp_path / "out")
    accuracy = {tuple(t["outcome"]["settings"]): t["outcome"]["accuracy"] for t in data["trials"]}
    assert len(accuracy) == 8
    assert len(set(accuracy.values())) == 8
    assert "place.per_channel=true" in data["pareto"][0]["outcome"]["settings"]


def test_what_a_target_does_not_run_is_a_failed_trial_that_says_so_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = 'sweep.space={"place.formats.*classify*": [int8, fp8, nvfp4]}'
    more = ("--sm", "89", "--set", "sweep.keep_float=[0]")
    assert cli(words(tmp_path / "out", *more, space=space)) == 0
    trials = result(tmp_path / "out")["trials"]
    assert Counter(trial["state"] for trial in trials) == {"complete": 2, "failed": 1}
    (failed,) = (trial for trial in trials if trial["state"] == "failed")
    assert "nvfp4" in failed["settings"][0]
    for told in (
        failed["reason"],
        " ".join(capsys.readouterr().out.split()),
        (tmp_path / "out" / "sweep.html").read_text("utf-8"),
    ):
        assert "SM89 cannot run" in told
        assert "build for SM120 or newer" in told
    fp8 = next(t["outcome"] for t in trials if t["outcome"] and "fp8" in str(t["outcome"]["settings"]))
    assert fp8["formats"]["fp8"] == 1


def test_settings_that_leave_nothing_quantized_fail_with_that_reason(tmp_path: Path) -> None:
    space = 'sweep.space={"place.format": [int8, float]}'
    assert cli(words(tmp_path / "out", "--set", "sweep.keep_float=[0]", space=space)) == 0
    (failed,) = (t for t in result(tmp_path / "out")["trials"] if t["state"] == "failed")
    assert "these settings quantize nothing" in failed["reason"]
    assert failed["settings"] == ['place.format="float"']
    assert [point["name"] for point in result(tmp_path / "out")["floats"]] == ["FP32", "FP16"]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_of_a_dask_cluster_find_what_one_finds(alone: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs the extra cluster")
    # in a process of its own: a cluster leaves threads behind
    command = [sys.executable, "-m", "qdqtool", *words(tmp_path / "out", "--cluster", "local")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert essence(result(tmp_path / "out")) == essence(result(alone))
    assert settings_of(result(tmp_path / "out")) == settings_of(result(alone))


def test_a_scheduler_that_does_not_answer_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed", reason="needs the extra cluster")
    assert cli(words(tmp_path / "out", "--cluster", "tcp://127.0.0.1:1")) == 3
    assert "no Dask scheduler answers" in capsys.readouterr().err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_a_clear_error_and_the_sweep_goes_on_when_there_is_space(
    small_disk: Path, alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_disk / "out"
    filler = small_disk / "filler"
    assert cli(words(out, "--trials", "3")) == 0
    left = os.statvfs(small_disk)
    filler.write_bytes(bytes(max(0, left.f_bavail * left.f_frsize - 30_000)))
    (out / "sweep.json").unlink()
    capsys.readouterr()
    assert cli(words(out)) == 5
    said = capsys.readouterr().err
    assert "space" in said
    assert "fix:" in said
    assert not (out / "sweep.json").exists()
    filler.unlink()
    assert cli(words(out)) == 0
    assert essence(result(out)) == essence(result(alone))


def test_labels_for_other_samples_are_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("1\n2\n3\n", "utf-8")
    assert cli(words(tmp_path / "out", "--labels", str(labels))) in {2, 5}
    said = capsys.readouterr().err
    assert "label" in said
    assert "fix:" in said


def test_labels_beyond_the_classes_are_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("70\n" * 64, "utf-8")
    assert cli(words(tmp_path / "out", "--labels", str(labels))) in {2, 5}
    assert "70" in capsys.readouterr().err


def test_samples_that_make_nan_are_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with np.load(SAMPLES.partition("[")[0]) as stored:
        name, values = next((name, stored[name]) for name in stored.files if stored[name].ndim == 4)
    np.savez(tmp_path / "nan.npz", **{name: np.full_like(values[:8], np.nan, dtype=np.float32)})
    call = words(tmp_path / "out")
    call[call.index(SAMPLES)] = str(tmp_path / "nan.npz")
    assert cli(call) == 5
    assert "NaN" in capsys.readouterr().err


def test_an_empty_search_space_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--set", "sweep.keep_float=[0]")
    assert cli(words(tmp_path / "out", *more, space="sweep.space={}")) == 2
    assert "nothing to search" in capsys.readouterr().err


def test_a_study_of_another_model_is_refused(
    alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:

    other = onnx.load(MODEL)
    other.doc_string = "another"
    onnx.save(other, tmp_path / "digits.onnx")
    call = words(tmp_path / "out", "--storage", f"sqlite:///{alone / 'study.db'}")
    call[1] = str(tmp_path / "digits.onnx")
    assert cli(call) == 2
    assert "another model" in capsys.readouterr().err


def test_a_limit_that_is_none_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(words(tmp_path / "out", "--pick", "fastest 3")) == 2
    assert "max-drop 0.5" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_format_is_not_searched_for_nodes_that_are_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = 'sweep.space={"place.formats.*no_such_node*": [int8, float]}'
    assert cli(words(tmp_path / "out", space=space)) == 2
    assert "place.formats: no node of the model matches '*no_such_node*'" in capsys.readouterr().err
