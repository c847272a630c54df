"""Recipes that extend others: values of the heir win, mistakes and circles are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdqtool.cli.app import run
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
        ("extends: conv-int9\n", "unknown recipe 'conv-int9'"),
        ("extends: [conv-int8]\n", "is not the name of a recipe"),
        ("extends: missing.yaml\n", "the recipe file does not exist"),
        ("extends: conv-int8\nplace: 3\n", "place"),
    ],
    ids=["unknown name", "list", "missing file", "section that is a number"],
)
def test_a_wrong_heir_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        recipes.load(write(tmp_path, "mine.yaml", text))


def outside(folder: Path) -> dict[str, str]:
    """Ways to name a file that is not in the folder `mine`, by what they are."""
    (folder / "mine" / "deep").mkdir(parents=True)
    for name in ("secret.yaml", "secret"):
        write(folder, name, "password_of_the_database: hunter2\n")
    (folder / "mine" / "link.yaml").symlink_to(folder / "secret.yaml")
    (folder / "mine" / "circle.yaml").symlink_to("circle.yaml")
    return {
        "absolute": str(folder / "secret.yaml"),
        "above": "../secret.yaml",
        "down and up": "deep/../../secret.yaml",
        "link": "link.yaml",
        "no ending": "../secret",
        "working folder": "secret",
        "device": "/dev/stdin",
        "null": '"a\\0.yaml"',
        "circle": "circle.yaml",
        "does not exist": str(folder / "nothing.yaml"),
    }


@pytest.mark.parametrize("through", ["one file", "a file beside it"])
def test_a_recipe_reads_no_file_outside_its_folder_without_trust(
    tmp_path: Path, through: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what stands in it, nor whether it is there."""
    monkeypatch.chdir(tmp_path)
    for way, name in outside(tmp_path).items():
        path = write(tmp_path / "mine", "mine.yaml", f"extends: {name}\n")
        if through == "a file beside it":
            path = write(tmp_path / "mine", "heir.yaml", "extends: mine.yaml\n")
        for read in (recipes.load, recipes.inspect):
            with pytest.raises(UsageError) as refused:
                read(path)
            assert "password" not in str(refused.value), way
            if way in {"absolute", "above", "down and up", "link", "no ending", "device", "does not exist"}:
                assert "outside the folder of the recipe" in refused.value.what, way
                assert "--trust" in refused.value.fix


def test_a_trusted_recipe_extends_files_anywhere(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path, "team.yaml", "extends: conv-int8\ncalibrate:\n  percentile: 99.9\n")
    path = write(tmp_path / "mine", "mine.yaml", "extends: ../team.yaml\n")
    assert recipes.load(path, trust=True).calibrate.percentile == 99.9


def test_a_file_below_the_folder_extends_one_in_it(tmp_path: Path) -> None:
    (tmp_path / "teams").mkdir()
    write(tmp_path, "base.yaml", "extends: conv-int8\ncalibrate:\n  percentile: 99.9\n")
    write(tmp_path / "teams", "team.yaml", "extends: ../base.yaml\n")
    path = write(tmp_path, "mine.yaml", "extends: teams/team.yaml\n")
    assert recipes.load(path).calibrate.percentile == 99.9


def test_the_commands_on_recipes_ask_for_trust_as_all_do(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path, "team.yaml", "extends: conv-int8\n")
    path = write(tmp_path / "mine", "mine.yaml", "extends: ../team.yaml\n")
    for command in ("show", "check"):
        assert run(["recipe", command, path]) == 2
        assert run(["recipe", command, path, "--trust"]) == 0


def test_the_schema_knows_inheritance() -> None:
    assert recipes.schema()["properties"]["extends"]["type"] == "string"
