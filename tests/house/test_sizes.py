"""Small files and small functions: what a reader can hold in the head."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for top in ("qdqtool", "calibrators") for path in (ROOT / top).rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
FORBIDDEN = {"utils", "helpers", "common", "manager", "base", "misc"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES + BENCHMARKS, ids=name_of)
def test_a_file_stays_under_700_lines(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) < 700


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_function_takes_at_most_7_parameters_and_50_statements(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    is_command = path.parent.name == "commands" or path.parent == ROOT / "qdqtool" / "api"
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            statements = sum(isinstance(inner, ast.stmt) for inner in ast.walk(node)) - 1
            assert statements <= 50, f"{node.name} has {statements} statements"
            parameters = len(node.args.args) + len(node.args.kwonlyargs)
            # The parameters of a command or of a call of the API are what a user types.
            assert is_command or parameters <= 7, f"{node.name} has {parameters} parameters"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_is_named_for_its_idea(path: Path) -> None:
    assert path.stem not in FORBIDDEN


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text("utf-8")))
