"""Without --recipe every command takes the shipped recipe that fits the model, and says which."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import qdqtool
from qdqtool.cli.app import run as cli
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline.suggest import fitting
from tests import models

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


def test_with_labels_a_network_of_several_outputs_is_measured_as_a_classifier(tmp_path: Path) -> None:
    from qdqtool.pipeline.suggest import recipe_for

    found = load(models.save(models.unet(), tmp_path))
    assert recipe_for(found)[1] == ()
    assert recipe_for(found, labelled=True)[1] == ("compare.task=classify",)


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
