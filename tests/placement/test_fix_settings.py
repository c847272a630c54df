"""A setting that a veto's fix names is one that a recipe takes, and with it the veto is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from qdqtool.cli.options import load_recipe
from qdqtool.core.advice import join_fixes
from qdqtool.core.placement import RequestOrVeto, Slot, SlotStatement
from qdqtool.core.recipe import PlacementOptions, PrepareOptions
from qdqtool.core.target import FAMILIES
from qdqtool.core.tensors import SCHEMES
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.view import Model
from qdqtool.placement.decide import decide
from qdqtool.trt.ops import PRODUCTS
from tests import models
from tests.placement.zoo import FLOAT

_SETTING = re.compile(r"\bset ([a-z_]+\.[a-z_]+=(?:\[[^\]]*\]|\S+))")


def prepared(name: str, folder) -> Model:
    return prepare(load(models.save(FLOAT[name](), folder)), PrepareOptions())


def vetoes(model: Model, options: PlacementOptions) -> Iterator[tuple[Slot, SlotStatement]]:
    for decision in decide(model.view, options).decisions:
        for opinion in decision.opinions:
            if opinion.stance is RequestOrVeto.VETO:
                yield decision.slot, opinion


def settings(fix: str) -> list[str]:
    return [setting.rstrip(",;.") for setting in _SETTING.findall(fix)]


@pytest.mark.parametrize("name", FLOAT)
def test_a_setting_in_a_fix_takes_the_veto_away(name: str, tmp_path) -> None:
    model = prepared(name, tmp_path)
    for target in FAMILIES:
        for slot, opinion in vetoes(model, PlacementOptions(target=target, min_channels=32)):
            assert "fold_constants" not in opinion.fix  # it is on
            typed = settings(opinion.fix)
            if typed:
                recipe = load_recipe(None, [f"place.target={target}", "place.min_channels=32", *typed])
                left = [(other, said.rule) for other, said in vetoes(model, recipe.place)]
                is_hint = opinion.fix.startswith("nothing to do")  # no setting makes such a node INT8
                assert is_hint or (slot, opinion.rule) not in left, opinion.fix


@pytest.mark.parametrize("target", FAMILIES)
@pytest.mark.parametrize("name", FLOAT)
def test_all_fixes_of_a_model_are_followed_at_once(name: str, target: str, tmp_path) -> None:
    model = prepared(name, tmp_path)
    said = [opinion for _, opinion in vetoes(model, PlacementOptions(target=target))]
    typed = settings(join_fixes(opinion.fix for opinion in said))
    keys = [setting.partition("=")[0] for setting in typed]
    lists = [key for key, setting in zip(keys, typed, strict=True) if "=[" in setting]
    assert len(set(lists)) == len(lists)  # of two settings of one list the last one would win
    skipped = {rule for setting in typed if "skip_rules" in setting for rule in re.findall(r"[\w]+", setting)}
    left = vetoes(model, load_recipe(None, [f"place.target={target}", *typed]).place)
    assert not skipped & {opinion.rule for _, opinion in left}


@pytest.mark.parametrize("format_", [name for name in SCHEMES if name != "int8"])
@pytest.mark.parametrize("name", FLOAT)
def test_an_input_that_another_format_leaves_float_has_a_reason_that_no_setting_voids(
    name: str, format_: str, tmp_path
) -> None:
    """Rules of INT8 ask for more inputs than other formats have; what they lose is said, not dropped."""
    model = prepared(name, tmp_path)
    ops = ["Conv", "Gemm", "MatMul"]
    for options in (PlacementOptions(ops=ops), PlacementOptions()):
        asked = {each.slot for each in decide(model.view, options).decisions if each.quantize}
        for decision in decide(model.view, replace_format(options, format_)).decisions:
            reasons = [each for each in decision.opinions if each.stance is RequestOrVeto.VETO]
            assert decision.quantize or reasons or decision.slot not in asked, decision
            if "place.ops" in "".join(each.fix for each in reasons):
                assert model.view.by_name[decision.slot.node].op in PRODUCTS


def replace_format(options: PlacementOptions, format_: str) -> PlacementOptions:
    return options.model_copy(update={"format": format_, "sm": ("120",), "target": "rtx"})
