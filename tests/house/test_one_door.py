"""Models are written through one door, which checks them.

It is `qdqtool.pipeline.writing`, which also compares what raising an opset did; builders, which may not import it and whose models
qdqtool wrote, use `qdqtool.backends.writing`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAVES = "qdqtool.graph.onnx_io.save"
WRITERS = frozenset({"save", "save_split", "save_beside", "save_around"})
ALLOWED = {
    "backends/writing.py": "the door",
    "runtime/runner.py": "hands a model to onnxruntime in a folder that nobody else reads",
    "pipeline/repair.py": "the same: the draft is run, then removed",
    "api/results.py": "writes a result again; it was checked when it was made",
    "api/inputs.py": "hands a model of the caller to qdqtool as a file, as it is",
    "cli/engine_files.py": "a picture with one node per layer, which no runtime opens",
}
"""Files that write a model without a check, each with its reason."""
FOREIGN = {"api/inputs.py": "hands a model of the caller to qdqtool as a file, as it is"}
"""Files that call `onnx.save`."""
FILES = sorted((ROOT / "qdqtool").rglob("*.py"))


def unchecked(tree: ast.Module) -> set[str]:
    """Functions by which a module writes models past the door."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == SAVES:
            found |= WRITERS & {name.name for name in node.names}
    return found


def foreign(tree: ast.Module) -> bool:
    """Whether a module writes models with onnx's own functions."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in {"save", "save_model", "save_tensor"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "onnx"
        for node in ast.walk(tree)
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_models_are_written_through_the_door_that_checks_them(path: Path) -> None:
    name = path.relative_to(ROOT / "qdqtool").as_posix()
    tree = ast.parse(path.read_text("utf-8"))
    assert not unchecked(tree) or name in ALLOWED or name == "graph/onnx_io/save.py"
    assert not foreign(tree) or name in FOREIGN


def test_only_builders_write_without_looking_at_the_opset() -> None:
    past = {
        path.relative_to(ROOT / "qdqtool").as_posix()
        for path in FILES
        if "writing" in path.read_text("utf-8")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom)
        and (node.module == "qdqtool.backends.writing" or "writing" in {name.name for name in node.names})
    }
    assert {name for name in past if not name.startswith("backends/")} == {"pipeline/writing.py"}


def test_no_exception_is_left_over() -> None:
    """A file that writes through the door by now needs no exception."""
    for name in ALLOWED:
        assert unchecked(ast.parse((ROOT / "qdqtool" / name).read_text("utf-8"))), name
    for name in FOREIGN:
        assert foreign(ast.parse((ROOT / "qdqtool" / name).read_text("utf-8"))), name
