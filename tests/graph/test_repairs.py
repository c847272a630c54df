"""All repairs: in order, documented, idle on good models, done after one round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.matching.rule import RULES, rulebook
from qdqtool.placement.repair import fix_order, remaining, repair
from tests import models
from tests.graph.repairing import Sketch, apart, repaired

RULEBOOK = rulebook().rules
ORDER = fix_order(RULEBOOK)


@pytest.mark.parametrize("name", ORDER)
def test_a_rule_with_a_fix_has_a_page(name: str) -> None:
    assert len(RULES.manual(name).splitlines()) > 2


def test_fixes_are_applied_by_stage_and_behind_the_rules_they_name() -> None:
    assert set(ORDER) == {name for name, rule in RULEBOOK.items() if rule.fix is not None}
    assert [RULEBOOK[name].stage for name in ORDER] == sorted(RULEBOOK[name].stage for name in ORDER)
    for place, name in enumerate(ORDER):
        assert set(RULEBOOK[name].after) <= set(ORDER[:place]), name


@pytest.mark.parametrize("name", models.ALL)
def test_float_models_have_nothing_to_repair(name: str, tmp_path: Path) -> None:
    assert repaired(models.ALL[name](), tmp_path)[1] == ()


def test_a_good_model_has_nothing_to_repair(tmp_path: Path) -> None:
    s = Sketch()
    y = s.relu("relu", s.convolved(s.pair(s.image(), "x"), s.filters()))
    s.output(s.convolved(s.pair(y, "y"), s.filters("v"), name="conv2"))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert changes == ()
    assert remaining(fixed) == ()
    assert apart(proto, fixed) == 0


def test_repairing_twice_changes_nothing_more(tmp_path: Path) -> None:
    s = Sketch()
    x = s.pair(s.image(), "x", zero=-100)
    y = s.pair(
        s.relu("relu", s.pair(s.convolved(x, s.filters(kind=np.uint8, zero=120)), "c", 0.05)), "r", 0.05, -128
    )
    s.output(s.node("Add", [y, s.pair(s.convolved(y, s.filters("v"), name="conv2"), "b")], "z", name="add"))
    fixed, changes = repaired(s.model(), tmp_path)
    assert changes
    again, more = repair(fixed)
    assert more == ()
    assert serialize(again) == serialize(fixed)


def test_the_original_is_not_touched(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", zero=3), s.filters()))
    path = models.save(s.model(), tmp_path)
    model = load(path)
    before, content = serialize(model), path.read_bytes()
    repair(model)
    assert (serialize(model), path.read_bytes()) == (before, content)
