"""What scripts and examples import from the packages is there; mypy reads the packages alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("benchmarks", "docs", "recipes", "tests")
OURS = frozenset({"qdqtool", "calibrators"})


@cache
def names_of(module: str) -> frozenset[str] | None:
    """The names that a module holds; None where it finds them when it is asked, or is no file of ours."""
    path = ROOT.joinpath(*module.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not source.exists():
        return frozenset()
    tree = ast.parse(source.read_text("utf-8"))
    found: set[str] = {entry.stem for entry in path.iterdir()} if path.is_dir() else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(name.asname or name.name).partition(".")[0] for name in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return None if "__getattr__" in found else frozenset(found)


def missing(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] in OURS:
            known = names_of(node.module or "")
            if known is not None:
                yield from (f"{node.module}.{name.name}" for name in node.names if name.name not in known)


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_name_that_is_imported_is_there(folder: str) -> None:
    found = {
        str(path.relative_to(ROOT)): lost
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (lost := list(missing(ast.parse(path.read_text("utf-8")))))
    }
    assert found == {}


def test_a_name_that_is_gone_is_seen() -> None:
    gone = ast.parse("from qdqtool.platform import processors, nobody\nfrom qdqtool.nowhere import anything")
    assert list(missing(gone)) == ["qdqtool.platform.nobody", "qdqtool.nowhere.anything"]
