"""The pipeline on the embedded example: its contract, its resumption, its honesty."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest

from qdqtool.cli.app import run as cli
from qdqtool.core.recipe import Recipe
from qdqtool.pipeline import recipes, runner, steps
from qdqtool.pipeline.request import RunContext, RunRequest
from qdqtool.pipeline.runner import LINE, RunStep, model_digest
from qdqtool.pipeline.sweep.context import SweepContext
from qdqtool.pipeline.third_party import QDQ_LINE

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "recipes" / "examples" / "digits"
pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
pytestmark = pytest.mark.rtx


def arguments(out: Path, *more: str, model: Path = DIGITS / "digits.onnx") -> list[str]:
    return [
        "run",
        str(model),
        "--samples",
        f"{DIGITS / 'calibration.npz'}[:64]",
        "--eval-samples",
        str(DIGITS / "evaluation.npz"),
        "--labels",
        str(DIGITS / "labels.npy"),
        "--out",
        str(out),
        *more,
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "digits"
    assert cli(arguments(out)) == 0
    return out


def report_of(folder: Path) -> dict:
    return json.loads((folder / "report.json").read_text("utf-8"))["data"]


def test_the_run_folder_holds_one_file_per_step(folder: Path) -> None:
    expected = {
        "recipe.yaml", "provenance.json", "placement.json", "histograms.npz", "calibration.json", "model.qdq.onnx",
        "build.json", "build.log", "layers.json", "engine.plan", "events.jsonl", "findings.json", "accuracy.json",
        "report.json", "report.html",
    }  # fmt: skip
    assert expected <= {path.name for path in folder.iterdir()}


def test_the_report_keeps_its_contract_with_scripts(folder: Path) -> None:
    data = report_of(folder)
    summary = data["summary"]
    for name in ("nodes_total", "nodes_int8", "kernels", "qdq_kernels", "activation_bytes_dumped"):
        assert isinstance(summary[name], int), name
    assert isinstance(summary["activation_bytes_fused"], int)
    assert set(summary["findings"]) == {"error", "warning", "info"}
    assert summary["accuracy"]["metric"] == "top1"
    assert {"reference", "int8"} <= set(summary["accuracy"])
    for fallback in data["fallbacks"]:
        assert {"node", "op", "precision", "reason", "fix"} <= set(fallback)


def test_the_embedded_example_runs_int8_without_losing_accuracy(folder: Path) -> None:
    summary = report_of(folder)["summary"]
    assert summary["nodes_int8"] == summary["nodes_requested"] >= summary["nodes_total"] - 1
    assert summary["accuracy"]["reference"] - summary["accuracy"]["int8"] <= 1.0


def test_a_second_run_does_nothing_and_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.onnx")}
    assert cli(arguments(folder)) == 0
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*.onnx")} == before
    assert capsys.readouterr().err.count("up to date") >= 10


@pytest.mark.slow
def test_a_change_repeats_only_what_depends_on_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    assert cli(arguments(copy, "--set", "calibrate.method=max")) == 0
    said = {line.split()[0]: line for line in capsys.readouterr().err.splitlines() if line.strip()}
    assert "up to date" in said["collect"]
    assert "up to date" not in said["calibrate"]
    assert "up to date" not in said["build"]


def test_a_damaged_file_is_made_again(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "calibration.json").write_text("{}")
    assert cli(arguments(copy)) == 0
    assert (copy / "calibration.json").read_bytes() == (folder / "calibration.json").read_bytes()


@pytest.mark.slow
def test_the_same_inputs_give_the_same_bytes_under_two_hash_seeds(tmp_path: Path) -> None:
    folders = []
    for seed in ("1", "2"):
        # Commands in the report name the folder as it was typed, so both runs type the same one.
        (tmp_path / seed).mkdir()
        subprocess.run(
            [sys.executable, "-m", "qdqtool", *arguments(Path("out"))],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=tmp_path / seed,
            check=True,
            capture_output=True,
        )
        folders.append(tmp_path / seed / "out")
    # The builder prints its own times into build.log; steps.json is what the steps cost here.
    measured = {"build.log", "log.json", "steps.json"}
    names = {path.name for path in folders[0].iterdir() if path.is_file()} - measured
    different = [
        name for name in sorted(names) if (folders[0] / name).read_bytes() != (folders[1] / name).read_bytes()
    ]
    assert not different


@pytest.mark.slow
def test_random_samples_are_marked_as_meaningless(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli(
        ["run", str(DIGITS / "digits.onnx"), "--samples", "random:4", "--out", str(tmp_path / "x"), "--json"]
    )  # fmt: skip
    assert code == 0
    summary = json.loads(capsys.readouterr().out)["data"]["summary"]
    assert summary["accuracy"]["meaningful"] is False


@pytest.mark.slow
def test_an_excluded_node_is_reported_as_float_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(arguments(tmp_path / "x", "--set", "place.exclude=stem*", "--json")) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    fallback = next(entry for entry in data["fallbacks"] if entry["node"].startswith("stem"))
    assert "exclude" in fallback["reason"]
    assert fallback["fix"]


@pytest.mark.slow
def test_pre_quantized_weights_and_fp16_make_the_model_smaller(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    assert cli(arguments(out, "--set", "insert.types=fp16", "--set", "insert.weights=int8")) == 0
    assert (out / "model.qdq.onnx").stat().st_size * 2 < (folder / "model.qdq.onnx").stat().st_size
    summary = report_of(out)["summary"]
    assert summary["nodes_int8"] == summary["nodes_requested"]


def test_fail_on_turns_a_finding_into_exit_code_1(tmp_path: Path) -> None:
    more = ("--set", "place.exclude='*'", "--fail-on", "info")
    assert cli(arguments(tmp_path / "x", *more)) == 1


def test_two_runs_do_not_share_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from filelock import FileLock

    with FileLock(folder / ".lock"):
        assert cli(arguments(folder)) == 2
    assert "another run" in capsys.readouterr().err


def test_a_failed_step_leaves_the_original_and_the_finished_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "broken.onnx"
    content = (DIGITS / "digits.onnx").read_bytes()[:5000]
    model.write_bytes(content)
    assert cli(arguments(tmp_path / "x", model=model)) == 5
    said = capsys.readouterr().err
    assert "broken.onnx" in said
    assert "fix:" in said
    assert "Traceback" not in said
    assert model.read_bytes() == content
    assert not (tmp_path / "x" / "model.prepared.onnx").exists()


@pytest.mark.parametrize("name", ["m.onnx", "M.ONNX"])
def test_new_weights_in_a_file_beside_the_model_are_another_model(name: str, tmp_path: Path) -> None:
    """A network trained again has the graph and the file names of before."""
    digests, studies = [], []
    for value in (1.0, 2.0):
        proto = onnx.load(DIGITS / "digits.onnx")
        for tensor in proto.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            if array.dtype == np.float32:
                tensor.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(value), tensor.name))
        onnx.save(proto, tmp_path / name, save_as_external_data=True, location="m.data", size_threshold=0)
        request = SimpleNamespace(model=tmp_path / name, labels=None, recipe=Recipe())
        source = SimpleNamespace(digest="")
        sweep = SimpleNamespace(
            base=request, _base_run=SimpleNamespace(samples=source, evaluation=source), _parts=[None]
        )
        digests.append(model_digest(cast("Any", SimpleNamespace(request=request))))
        studies.append(SweepContext.identity.fget(sweep))  # type: ignore[attr-defined]
        (tmp_path / "m.data").unlink()
    assert digests[0]["model"] == digests[1]["model"]
    assert digests[0] != digests[1]
    assert studies[0] != studies[1]


DERIVED = {
    "preparing": {"prepare", "place", "calibrate", "insert"},
    "placing": {"place", "insert", "build", "runtime"},
}
"""Options that a recipe derives, and the sections that they are derived from."""
OUTSIDE = {
    "prepare": {"samples"},  # only a check reads them
    "collect": {"weights"},
    "insert": {"prepare", "place", "calibrate", "weights"},
    "data": {"name"},
}
"""Parts of the recipe that are in `RunStep.outside` of a step instead of `RunStep.obeys`."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that gets the name of every part of a recipe that is read: sections, and derived options."""
    names: set[str] = set()
    inside: list[str] = []
    attribute = Recipe.__getattribute__

    def record(recipe: Recipe, name: str) -> Any:
        if name not in Recipe.model_fields and name not in DERIVED:
            return attribute(recipe, name)
        return unrecorded(attribute, name)(recipe, name)

    def unrecorded(act: Any, name: str = "") -> Any:
        def acting(*arguments: Any, **options: Any) -> Any:
            if name and not inside:
                names.add(name)
            inside.append(name)
            try:
                return act(*arguments, **options)
            finally:
                inside.pop()

        return acting

    monkeypatch.setattr(Recipe, "__getattribute__", record)
    # A refusal writes no file, and the samples are in the key with their digest.
    for module, name in (
        (steps, "refuse_unmatched"),
        (steps, "check_conversion"),
        (recipes, "check_document"),
    ):
        monkeypatch.setattr(module, name, unrecorded(getattr(module, name)))
    monkeypatch.setattr(RunContext, "opened", unrecorded(RunContext.opened))
    return names


def test_the_key_of_a_step_has_every_part_of_the_recipe_that_the_step_reads(
    tmp_path: Path, read: set[str]
) -> None:
    """A step that ignores a part of the recipe keeps the files of an earlier recipe."""
    ignored: dict[str, set[str]] = {}

    def watch(step: RunStep) -> RunStep:
        def act(work: RunContext) -> Any:
            read.clear()
            result = step.act(work)
            has = {*step.obeys, *OUTSIDE.get(step.name, ())}
            has |= {name for name, parts in DERIVED.items() if parts <= has}
            if read - has:
                ignored[step.name] = read - has
            return result

        return dataclasses.replace(step, act=act)

    order = RunRequest(
        model=DIGITS / "digits.onnx",
        recipe=recipes.load("conv-int8", ["insert.types=fp16"]),
        samples=f"{DIGITS / 'calibration.npz'}[:64]",
        eval_samples=str(DIGITS / "evaluation.npz"),
        labels=str(DIGITS / "labels.npy"),
        out=tmp_path / "float",
    )
    runner.run(order, course=tuple(map(watch, LINE)))
    order = dataclasses.replace(order, model=order.out / "model.qdq.onnx", out=tmp_path / "quantized")
    runner.run(order, course=tuple(map(watch, QDQ_LINE)))
    assert not ignored
