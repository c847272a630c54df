"""The benchmark over real models: its options are valid, and no sample calibrates and evaluates."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from qdqtool.pipeline import recipes
from tests.shared import ROOT, benchmark

ENTRIES: dict[str, dict[str, Any]] = YAML(typ="safe").load(
    (ROOT / "benchmarks" / "models.yaml").read_text("utf-8")
)
BENCHMARK = benchmark("models")


@pytest.fixture
def options(tmp_path: Path) -> argparse.Namespace:
    """Ten empty pictures of ImageNet classes 0 to 9."""
    pictures = tmp_path / "models" / "imagenet500"
    pictures.mkdir(parents=True)
    for number in range(10):
        (pictures / f"picture{number}.JPEG").touch()
    rows = "".join(f"picture{number}.JPEG\t{number}\n" for number in range(10))
    (pictures / "labels.tsv").write_text(f"file\tclass_id\n{rows}", "utf-8")
    return argparse.Namespace(models=tmp_path / "models", out=tmp_path / "out", quick=False, set=[])


@pytest.mark.parametrize("name", ENTRIES)
def test_every_model_has_a_shipped_recipe_that_takes_its_preprocessing_and_changes(
    name: str, options: argparse.Namespace
) -> None:
    call = BENCHMARK.command(name, ENTRIES[name], options)
    changes = [call[place + 1] for place, word in enumerate(call) if word == "--set"]
    assert ENTRIES[name]["recipe"] in recipes.names()
    assert (
        recipes.load(ENTRIES[name]["recipe"], changes).samples.preprocess
        != recipes.load(None).samples.preprocess
    )


@pytest.mark.parametrize("name", [name for name, entry in ENTRIES.items() if "split" not in entry])
def test_arrays_that_calibrate_are_not_those_that_evaluate(name: str) -> None:
    entry = ENTRIES[name]
    assert entry["samples"] != entry["evaluation"]


def test_every_picture_either_calibrates_or_evaluates(options: argparse.Namespace) -> None:
    entry = {"samples": "imagenet500", "split": 5, "labels": "imagenet500/labels.tsv"}
    words = BENCHMARK.sample_words("m", entry, options)
    calibration, evaluation = ({path.name for path in Path(words[place]).iterdir()} for place in (1, 3))
    assert calibration == {"picture0.JPEG", "picture5.JPEG"}
    assert len(evaluation) == 8
    assert not calibration & evaluation


def test_a_detector_is_scored_on_pictures_that_show_one_of_its_classes(options: argparse.Namespace) -> None:
    entry = {**ENTRIES["yolox_nano"], "split": 5}
    words = BENCHMARK.sample_words("m", entry, options)
    birds = {path.name for path in Path(words[3]).iterdir()}
    assert birds == {"picture7.JPEG", "picture8.JPEG", "picture9.JPEG"}
    assert "picture7.JPEG\t14\n" in Path(words[5]).read_text("utf-8")


def test_no_picture_shows_two_classes_of_the_detector() -> None:
    seen: list[int] = []
    for runs in ENTRIES["yolox_nano"]["coco"].values():
        for run in str(runs).split():
            first, _, last = run.partition("-")
            seen += range(int(first), int(last or first) + 1)
    assert len(seen) == len(set(seen))
    assert max(seen) < 1000


def test_a_failed_model_is_shown_and_counted() -> None:
    results = {"m": {"error": ["no such file"], "exit_code": 5, "seconds": 0.1}}
    assert "exit code 5: no such file" in BENCHMARK.accuracy_table(results)
    assert BENCHMARK.totals(results)["failed"] == ["m"]
