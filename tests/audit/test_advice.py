"""Fixes in words: what is printed can be followed as it stands."""

from __future__ import annotations

import re

import pytest

from qdqtool.core.advice import joined
from qdqtool.pipeline import recipes


def test_settings_of_one_list_become_one_setting_that_the_recipe_takes() -> None:
    fixes = [f"set place.skip_rules=[{rule}] to quantize it all the same" for rule in ("gemv", "narrow")]
    text = joined([*fixes, "set place.first_layer=int8"])
    settings = re.findall(r"set (\S+=(?:\[[^\]]*\]|\S+))", text)
    recipe = recipes.load(None, settings)
    assert recipe.place.skip_rules == ("gemv", "narrow")
    assert recipe.place.first_layer == "int8"
    assert text.count("to quantize it all the same") == 1


@pytest.mark.parametrize("fixes", [[], ["a"], ["a", "b"], ["a", "a", "b"]])
def test_other_fixes_stay_in_their_order_each_once(fixes: list[str]) -> None:
    assert joined(fixes) == "; ".join(dict.fromkeys(fixes))
