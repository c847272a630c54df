"""Fixes in words: what is printed can be followed as it stands."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import qdqtool
from qdqtool.core.advice import (
    PLACEHOLDERS,
    excluding,
    explain_placeholders,
    join_fixes,
    setting,
    settings_in,
    with_files,
)
from qdqtool.core.wording import Command
from qdqtool.pipeline import recipes


def test_settings_of_one_list_become_one_setting_that_the_recipe_takes() -> None:
    fixes = [f"{setting('place.skip_rules', [rule])} quantizes it anyway" for rule in ("gemv", "narrow")]
    text = join_fixes([*fixes, setting("place.first_layer", "int8")])
    recipe = recipes.load(None, list(settings_in(text)))
    assert recipe.place.skip_rules == ("gemv", "narrow")
    assert recipe.place.first_layer == "int8"
    assert text.count("quantizes it anyway") == 1


def test_names_that_need_quotes_stay_whole_in_one_setting() -> None:
    names = ("a[1]", "b[2]", "a,1", "it's", "12", "c")
    (text,) = settings_in(join_fixes(excluding([name]) for name in names))
    exclude = recipes.load(None, [text]).place.exclude
    assert exclude == ("a[[]1]", "b[[]2]", "a,1", "it's", "12", "c")


@pytest.mark.parametrize("fixes", [[], ["a"], ["a", "b"], ["a", "a", "b"]])
def test_other_fixes_stay_in_their_order_each_once(fixes: list[str]) -> None:
    assert join_fixes(fixes) == "; ".join(dict.fromkeys(fixes))


def _placeholders() -> set[str]:
    """Return the words in capital letters in all commands that the sources write."""
    calls = [
        node
        for path in Path(qdqtool.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == Command.__name__
    ]
    words = [leaf.value for call in calls for leaf in ast.walk(call) if isinstance(leaf, ast.Constant)]
    return {word for word in words if isinstance(word, str) and re.fullmatch("[A-Z][A-Z_]+", word)}


def test_every_placeholder_of_a_command_is_explained() -> None:
    assert _placeholders() == set(PLACEHOLDERS)


def test_only_placeholders_without_a_known_file_are_explained() -> None:
    fix = str(Command("compare", ("FLOAT_MODEL", "MODEL", "--samples", "DATA")))
    words = explain_placeholders(fix)
    assert all(f"{word}: {PLACEHOLDERS[word]}" in words for word in ("FLOAT_MODEL", "MODEL", "DATA"))
    filled = with_files(fix, "m.onnx", float_model="f.onnx")
    assert filled == "`qdqtool compare f.onnx m.onnx --samples DATA`"
    assert explain_placeholders(filled) == f"DATA: {PLACEHOLDERS['DATA']}"
