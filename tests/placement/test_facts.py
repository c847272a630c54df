"""The table of documented facts cannot go stale: every rule, every graph and every number is in it, and true."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from qdqtool.core.target import Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.view import Model
from qdqtool.matching.rule import RULES
from qdqtool.placement.lint import codes, lint
from tests import models
from tests.placement.facts import FACTS, PAINS, PLACEMENT_CASES, PROPAGATION, SEMANTICS, Fact
from tests.placement.qdq import GRAPHS
from tests.shared import shared

ROOT = Path(__file__).resolve().parents[2]
SHOWN = [(fact, graph) for fact in FACTS for graph in fact.graphs]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("facts")


@cache
def _opened(graph: str, folder: Path) -> Model:
    place = folder / graph
    place.mkdir()
    return load(models.save(GRAPHS[graph](), place))


def _spoken(fact: Fact, graph: str) -> str:
    return f"{fact.source} {graph} for {fact.builder}{'-sm' if fact.sm else ''}{''.join(fact.sm)}"


@pytest.mark.parametrize(("fact", "graph"), SHOWN, ids=[_spoken(*shown) for shown in SHOWN])
def test_lint_says_of_the_graph_what_the_fact_says(fact, graph, folder):
    report = lint(_opened(graph, folder), Target.parse(fact.builder, fact.sm))
    found = {finding.code for finding in report.findings}
    assert set(fact.codes) <= found
    if not fact.codes:
        assert found == set()


def test_every_rule_stands_for_a_fact():
    assert {code for fact in FACTS for code in fact.codes} == set(codes())


def test_every_graph_shows_a_fact():
    assert {graph for fact in FACTS for graph in fact.graphs} == set(GRAPHS)


@pytest.mark.parametrize(
    ("facts", "letter", "count"),
    [(PLACEMENT_CASES, "T", 23), (SEMANTICS, "S", 13), (PROPAGATION, "P", 18), (PAINS, "U", 18)],
    ids=["cases", "semantics", "propagation", "pains"],
)
def test_no_number_is_missing(facts, letter, count):
    assert {fact.source for fact in facts} == {f"{letter}{number + 1}" for number in range(count)}


def test_what_is_dealt_with_elsewhere_is_there():
    for fact in FACTS:
        assert bool(fact.graphs) != bool(fact.elsewhere)
        assert not fact.elsewhere or (ROOT / fact.elsewhere).is_file()


@pytest.mark.shared
def test_the_table_of_cases_and_the_rules_of_placement_have_not_grown():
    cases = shared("reference/tensorrt-rtx.md").read_text("utf-8").partition("## Placement cases")[2]
    rows = [line for line in cases.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == len({fact.source for fact in PLACEMENT_CASES})
    rules = (
        shared("reference/tensorrt-facts.md").read_text("utf-8").partition("## B3")[2].partition("\n## ")[0]
    )
    assert len(re.findall(r"(?m)^\d+\. ", rules)) == len({fact.source for fact in PROPAGATION})


@pytest.mark.parametrize("name", codes().values())
def test_every_rule_draws_what_it_means_and_names_its_evidence(name):
    manual = RULES.manual(name)
    assert re.search(r"(?m)^    \S", manual), "no drawing"
    assert "Evidence: " in manual
