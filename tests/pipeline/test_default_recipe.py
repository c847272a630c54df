"""Without --recipe every command takes the shipped recipe that fits the model, and says which."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.cli.app import COMMANDS, application
from qdqtool.cli.app import run as cli
from qdqtool.core.recipe import PrepareOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.pipeline.suggest import fitting
from tests import models
from tests.placement.zoo import FLOAT

MAKERS = (models.conv_chain, models.depthwise_cnn, models.attention, models.unet, models.gemms)
CHOSEN = {"conv-int8", "conv-depthwise-int8", "transformer-int8", "unet-int8"}


def test_the_networks_of_these_tests_get_several_recipes(tmp_path: Path) -> None:
    assert {fitting(load(models.save(make(), tmp_path)))[0] for make in MAKERS} == CHOSEN


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_place_decides_as_with_the_fitting_recipe(
    make: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(make)
    path = str(models.save(make(), tmp_path))
    name, why = fitting(load(Path(path)))
    assert cli(["place", path, "--json"]) == 0
    default = capsys.readouterr()
    assert f"recipe {name}, because {why}" in " ".join(default.err.split())
    assert cli(["place", path, "--json", "--recipe", name]) == 0
    assert default.out == capsys.readouterr().out
    assert qdqtool.place(path) == qdqtool.place(path, recipe=name)


def test_constants_decide_branches_before_the_recipe_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The network stands in the branches of an If on a rate, as Silero VAD does."""
    lstm = "h, last, cell = LSTM <hidden_size: int = 4> (x, w, r)  {0} = Identity (last)"
    proto = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17]>
        agraph (float[3, 1, 4] x, int64 rate) => (float[1, 1, 4] y)
        <float[1, 16, 4] w, float[1, 16, 4] r, int64 usual = {{16000}}> {{
            fast = Equal (rate, usual)
            y = If (fast) <
                then_branch = yes () => (float[1, 1, 4] a) {{ {lstm.format("a")} }},
                else_branch = no () => (float[1, 1, 4] b) {{ {lstm.format("b")} }}
            >
        }}
    """)
    del proto.graph.value_info[:]
    weights = np.ones((1, 16, 4), np.float32)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(weights, name) for name in ("w", "r"))
    path = models.save(proto, tmp_path)
    fixed = 'prepare.constants={"rate": 16000}'
    assert fitting(load(path))[0] == "conv-int8"
    assert fitting(load(path), [fixed])[0] == "audio-int8"
    assert cli(["place", str(path), "--set", fixed]) == 0
    assert "recipe audio-int8" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(FLOAT))
def test_the_same_recipe_fits_before_and_behind_preparing(name: str, tmp_path: Path) -> None:
    """The report is about the prepared model: it must not advise against what was chosen for the file."""
    model = load(models.save(FLOAT[name](), tmp_path))
    assert fitting(prepare(model, PrepareOptions())) == fitting(model)


@pytest.mark.slow
@pytest.mark.rtx
def test_a_run_without_recipe_is_never_told_that_another_fits(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    for make in (models.depthwise_cnn, models.unet):
        path = models.save(make(), tmp_path, f"{make.__name__}.onnx")
        out = tmp_path / make.__name__
        assert cli(["run", str(path), "--out", str(out)]) == 0
        codes = [
            finding["code"] for finding in json.loads((out / "report.json").read_text())["data"]["findings"]
        ]
        assert "DAT108" not in codes
        assert f"name: {fitting(load(path))[0]}" in (out / "recipe.yaml").read_text("utf-8")


DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"


def labelled(folder: Path) -> list[str]:
    """A classifier twice, its samples and their classes, as `compare` wants them."""
    labels = folder / "labels.npy"
    np.save(labels, np.load(DIGITS / "labels.npy")[:8])
    model = str(DIGITS / "digits.onnx")
    return [model, model, "--samples", f"{DIGITS / 'evaluation.npz'}[:8]", "--labels", str(labels)]


@pytest.mark.parametrize("recipe", ["detector-int8", "unet-int8", "conv-int8"])
def test_labels_are_counted_whatever_task_the_recipe_has(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, candidate, _, samples, _, labels = words = labelled(tmp_path)
    assert cli(["compare", *words, "--recipe", recipe, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["data"]
    assert [entry["metric"] for entry in found["task"]][:1] == ["top1"]
    same = qdqtool.compare(reference, candidate, samples, labels=labels, recipe=recipe)
    assert [entry.metric for entry in same.task][:1] == ["top1"]


def taking_labels() -> list[str]:
    program = application()
    return [
        name
        for name in COMMANDS.names()
        if any("--labels" in parameter.opts for parameter in program.commands[name].params)
    ]


def test_these_commands_take_labels() -> None:
    assert taking_labels() == ["compare", "fix", "repair", "run", "sensitivity", "sweep"]


@pytest.mark.parametrize("name", taking_labels())
def test_a_task_that_takes_no_labels_is_refused_beside_labels(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, *sides = labelled(tmp_path)
    words = [path, *sides] if name == "compare" else [path, *sides[1:]]
    more = [] if name in {"compare", "sensitivity"} else ["--out", str(tmp_path / "out.onnx")]
    assert cli([name, *words, *more, "--set", "compare.task=agreement"]) == 2
    assert "compare.task=agreement does not use labels" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.rtx
def test_architectures_are_refused_before_any_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    path = models.save(models.conv_chain(), tmp_path)
    assert cli(["run", str(path), "--sm", "86,999", "--out", str(tmp_path / "out")]) == 2
    assert "cannot build for sm999" in capsys.readouterr().err
    assert [entry.name for entry in (tmp_path / "out").iterdir() if entry.name != ".lock"] == []


def test_the_recipes_are_listed_for_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["recipe", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in rows} >= CHOSEN
    assert all(row["for"] and Path(row["file"]).is_file() for row in rows)


def test_a_builder_that_is_not_here_is_told_before_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def absent(_name: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr("qdqtool.backends.native.builder.version", absent)
    path = models.save(models.conv_chain(), tmp_path)
    assert cli(["run", str(path), "--samples", "random:2", "--out", str(tmp_path / "run")]) == 3
    told = " ".join(capsys.readouterr().err.split())
    assert "pip install 'qdqtool[rtx]'; `qdqtool quantize` writes the Q/DQ model without a builder" in told
    assert [entry.name for entry in (tmp_path / "run").iterdir() if entry.name != ".lock"] == []
