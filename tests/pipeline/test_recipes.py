"""Recipes: safe to read, checked as a whole."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from qdqtool.errors import InputFileError, QdqError, UsageError
from qdqtool.pipeline import recipes


def test_no_recipe_is_all_defaults() -> None:
    assert recipes.load(None).calibrate.method == "auto"


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
    assert recipes.load(str(path), trust=True) == recipe


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
            if not {"$ref", "allOf"} & field.keys():  # a section; pydantic before 2.9 wraps it
                assert field.get("description"), name


def said_about(text: str, folder: Path, *changes: str) -> str:
    path = folder / "wrong.yaml"
    path.write_text(text, "utf-8")
    with pytest.raises(UsageError) as caught:
        recipes.load(str(path), changes)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "place:\n  ops: [Conv]\n  exlude: [a]\n",
            "place.exlude: unknown name; did you mean 'exclude'? (line 3)",
        ),
        (
            'place:\n  target: "8"\ninsert:\n  types: fp16\n',
            "insert.types: TensorRT 8 reads FP32 scales only: keep fp32",
        ),
        ("extend: conv-int8\n", "extend: unknown name; did you mean 'extends'? (line 1)"),
        ("calibrate:\n  method: entropi\n", "unknown name 'entropi'; did you mean 'entropy'? (line 2)"),
        ("calibrate:\n  overrides:\n    a*: maks\n", "calibrate.overrides.a*: unknown name 'maks'"),
        ("build:\n  builder: rt\n", "build.builder: unknown name 'rt'; did you mean 'trt'? (line 2)"),
        (
            "place:\n  skip_rules: [gemw]\n",
            "place.skip_rules: unknown name 'gemw'; did you mean 'gemv'?",
        ),
        (
            "audit:\n  ignore: [fallbak]\n",
            "audit.ignore: unknown name 'fallbak'; did you mean 'fallback'?",
        ),
        ("place:\n  ops: [Conv, Matmul]\n", "place.ops: unknown name 'Matmul'; did you mean 'MatMul'?"),
        ("place:\n  exclude_ops: [Softmax]\n", "place.exclude_ops: unknown name 'Softmax'"),
        ("place:\n  target: 7\n", "unknown target '7'"),
        ("compare:\n  metrics: [cosin]\n", "compare.metrics: unknown name 'cosin'"),
        ("build:\n  opt_shapes: x\n", "build.opt_shapes: cannot read the shapes"),
        ("qat:\n  engine: ow\n", "qat.engine: unknown name 'ow'; did you mean 'own'? (line 2)"),
        ("qat:\n  loss: mee\n", "qat.loss: unknown name 'mee'; did you mean 'mse'?"),
        ("qat:\n  metric: top2\n", "qat.metric: unknown name 'top2'; did you mean 'top1'?"),
        ("qat:\n  model: mine.py\n", "qat.model: 'mine.py' does not name a function"),
        (
            "sweep:\n  space:\n    calibrate.metod: [max]\n",
            "is not a key of a recipe; did you mean 'method'? (line 3)",
        ),
        ("sweep:\n  keep_float: [1, -2]\n", "sweep.keep_float.1: input should be greater"),
        (
            "samples:\n  preprocess:\n    crop: [1, 2, 3]\n",
            "samples.preprocess.crop: input should be a valid",
        ),
        ("prepare: 3\n", "prepare: should be a section of names and values, got 3 (line 1)"),
        ("place:\n\tops: [Conv]\n", "is not YAML: line 2, column 1: found character '\\t'"),
        ("place:\n  ops: [Conv\ncalibrate: {}\n", "sequence that begins in line 2"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_the_nearest_right_name(
    text: str, says: str, tmp_path: Path
) -> None:
    assert says in said_about(text, tmp_path)


def test_wrong_values_do_not_hide_wrong_names(tmp_path: Path) -> None:
    said = said_about(
        "calibrate:\n  method: entropi\n  percentile: 200\nplace: 3\nqat:\n  engine: ow\n", tmp_path
    )
    assert "4 mistakes" in said
    assert all(word in said for word in ("entropi", "200", "place: should be", "'ow'"))


def test_a_mistake_is_told_where_it_was_made(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text("calibrate:\n  percentile: 200\n", "utf-8")
    said = said_about("extends: team.yaml\ninsert:\n  types: fp8\n", tmp_path, "place.exlude=[a]")
    assert "got 200 (team.yaml, line 2)" in said
    assert "got 'fp8' (line 3)" in said
    assert "(--set place.exlude=[a])" in said
    assert "(line" not in said_about("extends: team.yaml\n", tmp_path, "calibrate.percentile=300")


@pytest.mark.parametrize("name", ["\U0001f600", "a \"b\" 'c'", "d\\u00e9\n\x7f"])
def test_a_name_that_is_written_as_json_is_read_as_it_is(name: str) -> None:
    assert recipes.load(None, [f"place.exclude={json.dumps([name])}"]).place.exclude == (name,)


CODE = {
    "a metric": ("compare:\n  metrics: [cosine, 'evil:f']\n", "compare.metrics: evil:f"),
    "a loss": ("qat:\n  loss: evil.py:f\n", "qat.loss: evil.py:f"),
    "a metric that a sweep tries": (
        "sweep:\n  space:\n    compare.metrics: ['evil:f', cosine]\n",
        "sweep.space.compare.metrics: evil:f",
    ),
}


@pytest.mark.parametrize(("text", "says"), CODE.values(), ids=CODE)
def test_a_file_that_names_functions_needs_trust(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text, "utf-8")
    heir = tmp_path / "heir.yaml"
    heir.write_text("extends: mine.yaml\n", "utf-8")
    for recipe in (path, heir):
        with pytest.raises(UsageError, match="a run would execute") as caught:
            recipes.load(str(recipe))
        assert says in caught.value.what
        assert caught.value.where == str(path)
    recipes.load(str(heir), trust=True)


def test_what_the_user_types_and_what_is_shipped_needs_no_trust(tmp_path: Path) -> None:
    assert recipes.load(None, ["compare.metrics=['mine:f']"]).compare.metrics == ("mine:f",)
    path = tmp_path / "mine.yaml"
    path.write_text("compare:\n  limit: 5\n", "utf-8")
    assert recipes.load(str(path), ["compare.metrics=['mine:f']"]).compare.metrics == ("mine:f",)
    path.write_text("compare:\n  metrics: ['evil:f']\n", "utf-8")
    with pytest.raises(UsageError, match=r"names: compare\.metrics: evil:f \("):
        recipes.load(str(path), ["compare.metrics=['mine:f', 'evil:f']"])
    assert ":" in recipes.load("qat-digits").qat.model


def test_a_file_with_too_many_values_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_text("place:\n" + "".join(f"  key{number}: 1\n" for number in range(60_000)), "utf-8")
    with pytest.raises(UsageError, match="more than 5000 names and values"):
        recipes.load(str(path))


def test_a_file_full_of_mistakes_names_the_first_ones(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("place:\n" + "".join(f"  key{number}: 1\n" for number in range(500)), "utf-8")
    with pytest.raises(UsageError, match="500 mistakes") as caught:
        recipes.load(str(path))
    assert "and 460 more" in caught.value.what
    assert len(caught.value.what.splitlines()) == 42


@pytest.mark.parametrize("text", ["a: " + "[" * 20_000, "a: " + "{a: " * 5_000, "- " * 5_000])
def test_a_deeply_nested_recipe_is_refused_at_once(text: str, tmp_path: Path) -> None:
    """20 KB of brackets took 13 seconds of processor time."""
    (tmp_path / "deep.yaml").write_text(text)
    begin = time.process_time()
    with pytest.raises(UsageError, match="nested sections"):
        recipes.load(str(tmp_path / "deep.yaml"))
    assert time.process_time() - begin < 2
