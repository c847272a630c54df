"""Fixes in words: what is printed can be followed as it stands."""

from __future__ import annotations

import pytest

from qdqtool.core.advice import join_fixes, setting, settings_in
from qdqtool.pipeline import recipes


def test_settings_of_one_list_become_one_setting_that_the_recipe_takes() -> None:
    fixes = [f"{setting('place.skip_rules', [rule])} quantizes it anyway" for rule in ("gemv", "narrow")]
    text = join_fixes([*fixes, setting("place.first_layer", "int8")])
    recipe = recipes.load(None, list(settings_in(text)))
    assert recipe.place.skip_rules == ("gemv", "narrow")
    assert recipe.place.first_layer == "int8"
    assert text.count("quantizes it anyway") == 1


@pytest.mark.parametrize("fixes", [[], ["a"], ["a", "b"], ["a", "a", "b"]])
def test_other_fixes_stay_in_their_order_each_once(fixes: list[str]) -> None:
    assert join_fixes(fixes) == "; ".join(dict.fromkeys(fixes))
