"""Loops that prepare a model change nodes through `Edit` only, so that its readers and makers are never those of before."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "qdqtool" / "graph" / "preparation").glob("*.py"))
ENDS = {"input", "output"}
CHANGES = {"append", "extend", "insert", "pop", "remove", "clear"}
COPIES = {"folding.py": "_rename"}
"""Functions that change copies of nodes which are not part of a graph yet."""


def _by_hand(tree: ast.AST) -> list[int]:
    """Lines that change the inputs or outputs of a node in place."""
    lines = []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, (ast.Assign, ast.Delete)):
            targets = [part for target in node.targets for part in getattr(target, "elts", [target])]
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES
        ):
            targets = [ast.Subscript(node.func.value, ast.Constant(0))]
        ends = [target.value for target in targets if isinstance(target, ast.Subscript)]
        lines += [node.lineno for end in ends if isinstance(end, ast.Attribute) and end.attr in ENDS]  # type: ignore[attr-defined]
    return lines


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nodes_are_changed_through_the_edit(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == COPIES.get(path.name):
            function.body = []
    assert _by_hand(tree) == []


@pytest.mark.parametrize(
    "text",
    ["n.input[0] = x", "del n.input[1:]", "n.output[:] = x", "n.input.append(x)", "n.input[0], y = 1, 2"],
)
def test_a_change_by_hand_is_seen(text: str) -> None:
    assert _by_hand(ast.parse(text)) == [1]
