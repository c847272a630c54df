"""A number that decides something says what it is and where it comes from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWN = ("report", "cli")
"""Packages whose numbers are widths and lengths on a screen or a page."""
EXPLAINED = [
    path
    for package in ("qdqtool", "calibrators")
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.relative_to(ROOT).parts[1] not in SHOWN
]


def unexplained(source: str) -> Iterator[str]:
    """Constants of one number without a word: no comment above or beside it, no string below it.

    A group of assignments shares the comment above the first one.
    """
    lines = source.splitlines()
    body = ast.parse(source).body
    told_up_to = -1
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.end_lineno is None:
            continue
        before = lines[node.lineno - 2].strip() if node.lineno > 1 else ""
        beside = "#" in lines[node.end_lineno - 1]
        below = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if beside or below or before.startswith("#") or (told_up_to == node.lineno - 1):
            told_up_to = node.end_lineno
        elif is_a_number(node.value) and node.end_lineno - node.lineno < 2:
            yield ast.unparse(node)


def is_a_number(value: ast.expr | None) -> bool:
    """Whether this is one number, or a sum, product or shift of numbers, but not 0, 1 or 2."""
    if value is None:
        return False
    parts = list(ast.walk(value))
    allowed = ast.Constant | ast.BinOp | ast.UnaryOp | ast.operator | ast.unaryop
    numbers = [part.value for part in parts if isinstance(part, ast.Constant)]
    plain = all(isinstance(part, allowed) for part in parts) and all(type(n) in {int, float} for n in numbers)
    return plain and numbers not in ([0], [1], [2])


@pytest.mark.parametrize("path", EXPLAINED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_number_says_what_it_is(path: Path) -> None:
    assert not list(unexplained(path.read_text(encoding="utf-8")))


def test_a_bare_number_is_found() -> None:
    assert list(unexplained("A = 5\n")) == ["A = 5"]
    assert not list(unexplained("# Bytes.\nA = 5\nB = 6\n"))
    assert not list(unexplained('A = 5\n"""Bytes."""\n'))
    assert not list(unexplained("A = 5  # bytes\n"))
