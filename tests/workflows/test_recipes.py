"""Recipes: safe to read, checked as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qdqtool.errors import InputFileError, QdqError, UsageError
from qdqtool.workflows import recipes


def test_no_recipe_is_all_defaults() -> None:
    assert recipes.load(None).calibrate.method == "entropy"


@pytest.mark.parametrize("name", recipes.names())
def test_every_shipped_recipe_is_right_and_says_what_it_is_for(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.name == name
    assert recipe.description


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    recipe = recipes.load(name)
    path = tmp_path / "again.yaml"
    path.write_text(recipes.dump(recipe), "utf-8")
    assert recipes.load(str(path)) == recipe


def test_five_mistakes_are_reported_together_with_path_and_nearest_name(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(
        "place:\n  exlude: [a]\n  min_channels: -1\ncalibrate:\n  percentile: 200\ninsert:\n  types: fp8\nbuidl: {}\n",
        "utf-8",
    )
    with pytest.raises(UsageError) as caught:
        recipes.load(str(path))
    said = str(caught.value)
    assert "5 mistakes" in said
    assert "place.exlude: unknown name; did you mean 'exclude'?" in said
    assert "place.min_channels" in said
    assert "calibrate.percentile" in said
    assert "insert.types" in said
    assert "buidl: unknown name; did you mean 'build'?" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("place: [unclosed", "is not YAML"),
        ("place: {}\nplace: {}\n", "duplicate key"),
        ("a: &x [1]\nb: *x\n", "aliases"),
        ("just words", "a mapping"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
    ],
    ids=["unclosed bracket", "key given twice", "alias", "not a mapping", "tag that would run code"],
)
def test_a_bad_file_is_a_clear_error(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(QdqError, match=says) as caught:
        recipes.load(str(path))
    assert caught.value.exit_code == 2
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"a" * (1 << 21)], ids=["not UTF-8", "2 MiB"])
def test_a_file_that_is_no_text_is_a_clear_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    with pytest.raises(InputFileError):
        recipes.load(str(path))


def test_an_unknown_recipe_is_answered_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="conv-int9") as caught:
        recipes.load("conv-int9")
    assert "conv-int8" in caught.value.fix


def test_set_changes_one_value_and_reads_it_as_yaml() -> None:
    recipe = recipes.load(None, ["place.exclude=[a*, b]", "build.sm=89", "calibrate.percentile=99.9"])
    assert recipe.place.exclude == ("a*", "b")
    assert recipe.build.sm == ("89",)
    assert recipe.calibrate.percentile == 99.9


@pytest.mark.parametrize(
    "change", ["novalue", "=3", "place.exclude.deep=1"], ids=["no equals", "no key", "too deep"]
)
def test_a_bad_change_is_a_clear_error(change: str) -> None:
    with pytest.raises(UsageError):
        recipes.load(None, [change] if change != "place.exclude.deep=1" else ["place.exclude=a", change])


def test_the_schema_describes_every_field() -> None:
    schema = recipes.schema()
    json.dumps(schema)
    for section in schema["$defs"].values():
        for name, field in section["properties"].items():
            if "$ref" not in field:
                assert field.get("description"), name
