"""Recipes that extend others: values of the heir win, mistakes and circles are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.errors import UsageError
from qdqtool.pipeline import recipes


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


def test_an_heir_says_only_what_differs(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "extends: conv-int8\ncalibrate:\n  percentile: 99.9\n")
    mine, parent = recipes.load(path), recipes.load("conv-int8")
    assert mine.calibrate.percentile == 99.9
    assert mine.calibrate.method == parent.calibrate.method == "auto"
    assert mine.place == parent.place


def test_lists_are_replaced_and_not_joined(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "extends: conv-int8\nplace:\n  ops: [Gemm]\n")
    assert recipes.load(path).place.ops == ("Gemm",)


def test_inheritance_goes_through_files_beside_the_recipe(tmp_path: Path) -> None:
    write(tmp_path, "team.yaml", "extends: detector-int8\ncalibrate:\n  method: max\n")
    path = write(tmp_path, "mine.yaml", "extends: team.yaml\ninsert:\n  types: fp16\n")
    mine = recipes.load(path, ["place.last_layer=int8"])
    assert (mine.calibrate.method, mine.insert.types, mine.compare.task) == ("max", "fp16", "agreement")
    assert mine.place.last_layer == "int8"


def test_functions_of_an_inherited_recipe_are_found_from_anywhere(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.yaml", "extends: qat-digits\nqat:\n  epochs: 1\n")
    place, _, name = recipes.load(path).qat.model.rpartition(":")
    assert Path(place).is_file()
    assert name == "model"


def test_a_circle_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "extends: b.yaml\n")
    path = write(tmp_path, "b.yaml", "extends: a.yaml\n")
    with pytest.raises(UsageError, match=r"extends itself: b\.yaml -> a\.yaml -> b\.yaml"):
        recipes.load(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("extends: conv-int9\n", "no recipe is called 'conv-int9'"),
        ("extends: [conv-int8]\n", "is no recipe"),
        ("extends: missing.yaml\n", "no such recipe file"),
        ("extends: conv-int8\nplace: 3\n", "place"),
    ],
    ids=["unknown name", "list", "missing file", "section that is a number"],
)
def test_a_wrong_heir_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        recipes.load(write(tmp_path, "mine.yaml", text))


def test_the_schema_knows_inheritance() -> None:
    assert recipes.schema()["properties"]["extends"]["type"] == "string"
