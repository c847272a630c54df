"""What the audit, the lint and placement tell people to type is something that qdqtool takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import qdqtool
from qdqtool.cli.app import run
from qdqtool.core.recipe import Recipe

PACKAGES = ("auditing", "rules", "matching", "prediction", "placement", "buildlog")
COMMAND = re.compile(r"`qdqtool ([a-z-]+)((?: [^`]*)?)`")
KEY = re.compile(r"\b(place|insert|prepare|calibrate|build|weights|samples)\.([a-z_]+)")


def texts() -> Iterator[tuple[str, str]]:
    """File and text of every string that is printed: docstrings are read by tests of the pages."""
    root = Path(qdqtool.__file__).parent
    for path in sorted(file for name in PACKAGES for file in (root / name).rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        documentation = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in documentation
            ):
                yield str(path.relative_to(root)), node.value


COMMANDS = sorted({(match[1], match[2].strip()) for _, text in texts() for match in COMMAND.finditer(text)})
KEYS = sorted(
    {(match[1], match[2]) for _, text in texts() for match in KEY.finditer(text) if match[0] != "build.log"}
)


@pytest.mark.parametrize(("command", "arguments"), COMMANDS, ids=[" ".join(pair) for pair in COMMANDS])
def test_a_command_that_is_printed_exists_with_its_options(
    command: str, arguments: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([command, "--help"]) == 0
    told = capfd.readouterr().out
    for option in re.findall(r"--[a-z][a-z-]*", arguments):
        assert option in told, f"qdqtool {command} has no {option}"


@pytest.mark.parametrize(("section", "key"), KEYS, ids=[".".join(pair) for pair in KEYS])
def test_a_setting_that_is_printed_is_one_of_a_recipe(section: str, key: str) -> None:
    fields = type(getattr(Recipe(), section)).model_fields
    assert key in fields


def test_texts_name_commands_and_settings_at_all() -> None:
    assert len(COMMANDS) > 5
    assert len(KEYS) > 10
