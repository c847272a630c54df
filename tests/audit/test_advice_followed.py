"""Every fix can be followed as it is printed, or says that nothing can be: a law over all advice this code can make."""

from __future__ import annotations

import ast
import shlex
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qdqtool
from qdqtool.auditing.full_audit import audit
from qdqtool.core.advice import (
    adjust_severity,
    as_float,
    format_fix,
    is_followed,
    join_fixes,
    leaves_nothing,
    repair_commands,
    settings_in,
)
from qdqtool.core.findings import Finding, LintFinding, NodeVerdict, Severity
from qdqtool.core.target import FAMILIES, Target
from qdqtool.engine import read
from qdqtool.graph.onnx_io.load import load
from qdqtool.pipeline import recipes
from qdqtool.placement.decide import decide
from qdqtool.placement.lint import lint
from tests import golden, models
from tests.advice import follow
from tests.placement.qdq import GRAPHS
from tests.placement.zoo import FLOAT

WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=40)
NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=382, exclude_categories=("Cs", "Cc")), min_size=1
)


@given(WORDS, st.sampled_from(["", "`qdqtool repair --float fc`", "--set place.first_layer=int8"]), WORDS)
def test_whatever_a_rule_says_becomes_advice_that_can_be_followed(fix: str, command: str, at: str) -> None:
    told = format_fix(fix, command=command, at=at)
    assert told == "" if not fix else is_followed(told)
    assert fix in told
    assert format_fix(told, command=command, at=at) == told


@given(WORDS, st.sampled_from(["`qdqtool repair --float fc`", "--set place.first_layer=int8"]))
def test_a_warning_has_a_fix_and_where_there_is_none_it_is_for_information(why: str, way: str) -> None:
    for nothing in ("nothing to do", f"nothing to do: {why}"):
        assert adjust_severity(Severity.WARNING, nothing) is (
            Severity.INFO if leaves_nothing(nothing) else Severity.WARNING
        )
        beside = join_fixes([nothing, way])
        assert adjust_severity(Severity.WARNING, beside) is Severity.WARNING
    assert adjust_severity(Severity.WARNING, format_fix(why or way)) is Severity.WARNING


def test_whatever_is_written_down_as_nothing_to_do_says_so_or_names_when_there_is_something() -> None:
    texts = {
        node.value
        for path in sorted(Path(qdqtool.__file__).parent.rglob("*.py"))
        if path.stem != "advice"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.startswith("nothing to do")
    }
    assert len(texts) > 20
    for text in texts:
        assert leaves_nothing(text) or text.startswith(
            ("nothing to do;", "nothing to do, unless ", "nothing to do if ", "nothing to do by a command")
        ), text


@pytest.mark.parametrize(
    ("maker", "folder"), [("Finding", "auditing"), ("Finding", "datachecks"), ("LintFinding", "placement")]
)
def test_every_place_that_makes_findings_of_checks_grades_them(maker: str, folder: str) -> None:
    root = Path(qdqtool.__file__).parent / folder
    made = [path for path in sorted(root.rglob("*.py")) if f" {maker}(\n" in path.read_text("utf-8")]
    assert made
    for path in made:
        assert "severity=adjust_severity(" in path.read_text("utf-8"), path


def is_graded(finding: Finding | LintFinding) -> bool:
    return finding.severity is Severity.INFO or not leaves_nothing(finding.fix)


@given(st.lists(NAMES, min_size=1, max_size=3, unique=True))
def test_the_advice_to_leave_nodes_float_names_these_nodes_alone(names: list[str]) -> None:
    kept = recipes.load(None, list(settings_in(as_float(names, placed=True)))).place.exclude
    assert all(any(fnmatchcase(name, glob) for glob in kept) for name in names)
    assert len(kept) == len(names)
    if not any("`" in name for name in names):
        (command,) = repair_commands(as_float(names, placed=False))
        assert shlex.split(command)[2:] == [word for name in names for word in ("--float", name)]


@pytest.mark.parametrize("kind", [Finding, NodeVerdict, LintFinding], ids=lambda kind: kind.__name__)
def test_every_place_that_makes_a_finding_makes_its_fix_one_that_can_be_followed(kind: type) -> None:
    """Findings about samples aside: what they ask for is done to data."""
    root = Path(qdqtool.__file__).parent
    made = [
        (path, node)
        for package in ("auditing", "placement", "rules", "matching")
        for path in sorted((root / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == kind.__name__
    ]
    assert made
    for path, _ in made:
        assert "format_fix(" in path.read_text("utf-8") or path.stem == "logged", path


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_fixes_of_lint_can_be_followed(graph: str, tmp_path: Path) -> None:
    model = load(models.save(GRAPHS[graph](), tmp_path))
    for family in FAMILIES:
        for finding in lint(model, Target.parse(family)).findings:
            follow(finding.fix)
            assert is_graded(finding)


@pytest.mark.parametrize("name", sorted(FLOAT))
def test_the_fixes_of_placement_can_be_followed(name: str, tmp_path: Path) -> None:
    view = load(models.save(FLOAT[name](), tmp_path)).view
    for settings in (
        [],
        ["place.format=fp8", "place.sm=[89]"],
        ["place.format=nvfp4", "place.sm=[120]"],
        ["place.sm=[75]"],
    ):
        for decision in decide(view, recipes.load(None, settings).place).decisions:
            for opinion in decision.opinions:
                if opinion.fix:
                    follow(opinion.fix)


@pytest.mark.parametrize("name", golden.names("layers"))
def test_the_fixes_of_an_engine_alone_can_be_followed(name: str) -> None:
    for finding in audit(None, read(golden.path_of("layers", name))).findings:
        follow(finding.fix)
        assert is_graded(finding)
