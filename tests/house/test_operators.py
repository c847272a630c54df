"""Families of ONNX operators are listed in one place, so that no two parts of the program can disagree about them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import onnx.defs
import pytest

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = {schema.name for schema in onnx.defs.get_all_schemas()}
ALLOWED = {
    "qdqtool/trt/ops.py": "the place",
    "qdqtool/core/quant_format.py": "the operators that have kernels for a format",
    "qdqtool/core/recipe.py": "defaults of a recipe, which users read and change",
}
FILES = sorted(
    path
    for top in ("qdqtool", "calibrators")
    for path in (ROOT / top).rglob("*.py")
    if str(path.relative_to(ROOT)) not in ALLOWED
)


def lists(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Line and words of every literal collection that names two operators or more, and nothing else."""
    for node in ast.walk(tree):
        elements: list[ast.expr | None] = []
        if isinstance(node, (ast.Set, ast.Tuple, ast.List)):
            elements = [*node.elts]
        elif isinstance(node, ast.Dict):
            elements = [*node.keys]
        words = [each.value for each in elements if isinstance(each, ast.Constant)]
        if len(words) > 1 and all(word in OPERATORS for word in words):
            yield node.lineno, [str(word) for word in words]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_lists_no_operators(path: Path) -> None:
    assert list(lists(ast.parse(path.read_text("utf-8")))) == []


@pytest.mark.parametrize(
    "source",
    ['{"Conv", "Gemm"}', '("Conv", "Gemm")', '["Conv", "Gemm"]', '{"Conv": 1, "Gemm": -1}'],
)
def test_such_a_list_is_seen(source: str) -> None:
    assert list(lists(ast.parse(source))) == [(1, ["Conv", "Gemm"])]


def test_words_that_are_no_operators_are_left_alone() -> None:
    assert list(lists(ast.parse('{"Add", "Silu"}'))) == []


@pytest.mark.parametrize("name", ALLOWED)
def test_the_places_that_may_list_them_are_there(name: str) -> None:
    assert list(lists(ast.parse((ROOT / name).read_text("utf-8"))))
