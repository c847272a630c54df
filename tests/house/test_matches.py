"""One pattern, one place: what a rule places, finds and fixes is what its one `match` yields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from qdqtool.matching.registry import rulebook

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("place", "check", "fix")
SEVERAL = sorted(
    name
    for name, rule in rulebook().rules.items()
    if sum(getattr(rule, part) is not None for part in PARTS) > 1
)


def names_read(function: str, functions: dict[str, ast.FunctionDef], seen: set[str]) -> Iterator[str]:
    """Every name that a function reads, itself or through functions of its file."""
    seen.add(function)
    for node in ast.walk(functions[function]):
        if isinstance(node, ast.Name):
            yield node.id
            if node.id in functions and node.id not in seen:
                yield from names_read(node.id, functions, seen)


def blind_parts(source: str) -> set[str]:
    """The parts of a rule that do not stand on its match."""
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    parts = functions.keys() & set(PARTS)
    return {part for part in parts if "match" not in names_read(part, functions, set())}


@pytest.mark.parametrize("name", SEVERAL)
def test_all_parts_of_a_rule_stand_on_one_match(name: str) -> None:
    source = (ROOT / "qdqtool" / "rules" / f"{name}.py").read_text("utf-8")
    assert not blind_parts(source)


def test_a_part_with_a_pattern_of_its_own_is_seen() -> None:
    source = """
def match(view): return view.nodes
def check(flow): return _found(flow)
def _found(flow): return [node for node in match(flow.view)]
def fix(context): return [node for node in context.view.nodes]
"""
    assert blind_parts(source) == {"fix"}


def test_most_rules_that_fix_also_check() -> None:
    assert len(SEVERAL) > 30
