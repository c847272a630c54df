"""Every shipped recipe is valid, explains itself, and names only plug-ins and samples that exist."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from qdqtool.cli.app import run
from qdqtool.core.calibration import CALIBRATORS
from qdqtool.core.recipe import AUTO
from qdqtool.pipeline import recipes

FOLDER = Path(__file__).resolve().parents[2] / "recipes"
FILES = sorted(FOLDER.glob("*.yaml"))
NAMES = [path.stem for path in FILES]


def test_every_family_of_models_has_a_recipe() -> None:
    families = {
        "conv-int8",
        "conv-depthwise-int8",
        "detector-int8",
        "transformer-int8",
        "unet-int8",
        "diffusion-int8",
        "audio-int8",
        "audio-to-audio-int8",
    }
    families |= {"conv-fp8", "transformer-fp8", "llm-int4-weights", "llm-nvfp4", "mixed-best"}
    situations = {
        "int8-fp16-mixed",
        "weights-only-int8",
        "from-calibration-cache",
        "third-party-qdq",
        "dla-int8",
    }
    assert families | situations | {"qat-digits", "qat-cifar10-resnet20", "qat-detector"} <= set(NAMES)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_recipe_is_valid_and_named_like_its_file(path: Path) -> None:
    recipe = recipes.load(str(path))
    assert recipe.name == path.stem
    assert recipe.description.endswith(".")


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_recipe_begins_with_a_comment_that_says_when_to_use_it_and_what_it_does(path: Path) -> None:
    header = [line for line in path.read_text("utf-8").splitlines() if line.startswith("#")]
    text = "\n".join(header)
    assert len(header) >= 10
    assert all(title in text for title in ("What it does", "When to take another", "Worth changing"))


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_recipe_is_shown_with_its_page_in_front_and_reads_back(path: Path, tmp_path: Path, capsys) -> None:
    assert run(["recipe", "show", path.stem]) == 0
    shown = capsys.readouterr().out
    page = [line for line in path.read_text("utf-8").splitlines() if line.startswith("#")]
    assert shown.splitlines()[: len(page)] == page
    (written := tmp_path / path.name).write_text(shown, "utf-8")
    assert recipes.load(str(written), trust=True) == recipes.load(path.stem, trust=True)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_recipe_says_what_was_measured_and_with_which_command(path: Path) -> None:
    if path.stem in {"from-calibration-cache", "third-party-qdq"}:
        pytest.skip("a way from one file to another, which measures nothing by itself")
    text = path.read_text("utf-8")
    measured = text[text.index("# Measured") : text.index("# When to take another")]
    assert "qdqtool " in measured or "benchmarks/models.py" in measured


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_changes_that_the_header_recommends_are_accepted(path: Path) -> None:
    lines = [line for line in path.read_text("utf-8").splitlines() if line.startswith("#   --set ")]
    changes = [line.removeprefix("#   --set ").split("  ")[0].strip().strip("'") for line in lines]
    assert changes
    for change in changes:
        recipes.load(str(path), [change])


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_recipe_holds_no_data_and_keeps_what_it_does_not_name_at_the_default(path: Path) -> None:
    document = YAML(typ="safe", pure=True).load(path.read_text("utf-8"))
    method = {"name", "description", "extends", "optional"}
    method |= {"samples", "place", "calibrate", "weights", "insert", "compare", "qat"}
    assert set(document) <= method
    assert "preprocess" not in document.get("samples", {})


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_calibrator_of_the_recipe_is_there(path: Path) -> None:
    assert recipes.load(str(path)).calibrate.method in {AUTO, *CALIBRATORS.names()}


@pytest.mark.parametrize(
    "name",
    [
        "/blocks/blocks.0/mlp/fc1/MatMul",
        "/model/layers.3/mlp/down_proj/MatMul",
        "/encoder/layer.0/intermediate/dense/MatMul",
        "/layers.0/fc2/Gemm",
        "/transformer/layer.1/ffn/lin1/MatMul",
    ],
)
def test_names_that_exporters_give_feed_forward_layers_are_nvfp4_in_the_mixed_recipe(name: str) -> None:
    formats = recipes.load(str(FOLDER / "mixed-best.yaml")).place.formats
    assert [word for glob, word in formats.items() if fnmatchcase(name, glob)][:1] == ["nvfp4"]
    assert not any(fnmatchcase("/encoder/layer.0/attention/self/query/MatMul", glob) for glob in formats)
