"""Rules of other distributions are asked like our own; one that fails is named, and nothing else stops."""

from __future__ import annotations

import sys
import textwrap
from importlib.metadata import EntryPoint

import pytest

from qdqtool import plugins
from qdqtool.auditing import audit
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.onnx_io.load import load
from qdqtool.matching import rule
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint
from qdqtool.placement.repair import repair
from tests import models
from tests.audit.scenes import engine, kernel
from tests.placement.qdq import GRAPHS

GOOD = """
from qdqtool.core.placement import SlotStatement, Slot, RequestOrVeto
from qdqtool.matching.rule import Rule, Violation

def place(view, options):
    yield SlotStatement(slot=Slot(node="conv2", index=0), stance=RequestOrVeto.VETO, reason="the house says so")

def check(flow, target):
    yield Violation(node="c1", reason="wrong", effect="none", fix="nothing to do")

PLUGIN = Rule(code="ACM100", place=place, check=check)
"""
FAILING = """
from qdqtool.matching.rule import Rule

def part(*_):
    raise RuntimeError("no luck")

PLUGIN = Rule(code="ACM101", place=part, check=part, fix=part, explain=part)
"""
BROKEN = "raise RuntimeError('cannot be imported')"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    def install(source: str, name: str = "acme") -> None:
        (tmp_path / "acme_rule.py").write_text(textwrap.dedent(source))
        monkeypatch.syspath_prepend(tmp_path)
        entries = {name: EntryPoint(name=name, value="acme_rule", group="qdqtool.rules")}
        own = plugins._find_installed
        monkeypatch.setattr(
            plugins, "_find_installed", lambda group: entries if group == "qdqtool.rules" else own(group)
        )
        rule._load_rules.cache_clear()

    yield install
    sys.modules.pop("acme_rule", None)
    rule._load_rules.cache_clear()


def float_view(tmp_path):
    return load(models.save(models.conv_chain(), tmp_path)).view


def test_a_rule_of_another_distribution_is_asked(installed, tmp_path) -> None:
    installed(GOOD)
    placement = decide(float_view(tmp_path))
    assert "acme" in {opinion.rule for entry in placement.decisions for opinion in entry.opinions}
    assert not any(entry.slot.node == "conv2" for entry in placement.quantized)
    report = lint(load(models.save(GRAPHS["chain_ok"](), tmp_path)))
    assert [finding.code for finding in report.findings] == ["ACM100"]


def test_it_can_be_left_out_by_name(installed, tmp_path) -> None:
    installed(GOOD)
    placement = decide(float_view(tmp_path), PlacementOptions(skip_rules=("acme",)))
    assert any(entry.slot.node == "conv2" for entry in placement.quantized)


def test_a_rule_that_fails_is_named_and_the_others_answer(installed, tmp_path) -> None:
    view = float_view(tmp_path)
    usual = decide(view)
    installed(FAILING)
    placement = decide(view)
    assert placement.decisions == usual.decisions
    assert any("acme" in note for note in placement.notes)
    model = load(models.save(GRAPHS["pair_before_relu"](), tmp_path))
    report = lint(model)
    assert {finding.code for finding in report.findings} == {"QDQ126"}
    assert any("acme" in note for note in report.notes)
    assert [change.rule for change in repair(model)[1]] == ["inside_fusion"]
    found = audit(model, engine(*(kernel(node, node) for node in ("c1", "c2"))))
    assert sum("acme" in note for note in found.notes) == 1


@pytest.mark.filterwarnings("ignore")
def test_a_rule_that_cannot_be_imported_stops_nothing(installed, tmp_path) -> None:
    view = float_view(tmp_path)
    usual = decide(view)
    installed(BROKEN)
    assert decide(view) == usual


def test_a_rule_that_takes_the_name_of_a_shipped_one_is_not_used(installed, caplog) -> None:
    own = rule.rulebook().rules["conv"]
    plugins._warn_once.cache_clear()
    installed(GOOD, name="conv")
    assert rule.rulebook().rules["conv"] == own
    assert "offers the rule 'conv' too: the shipped one is used" in caplog.text


def test_a_rule_that_takes_the_code_of_a_shipped_one_is_left_out_with_both_places(installed, caplog) -> None:
    own = rule.rulebook().rules["small_product"]
    plugins._warn_once.cache_clear()
    installed(GOOD.replace("ACM100", own.code))
    assert "acme" not in rule.rulebook().rules
    assert rule.code_names()[own.code] == "small_product"
    assert f"has the code {own.code}, like 'small_product'" in caplog.text
    assert "small_products.py" in caplog.text
    assert "it is skipped" in caplog.text
