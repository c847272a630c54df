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

KEY = re.compile(r"\b(place|insert|prepare|calibrate|build|weights|samples)\.([a-z_]+)")


def made() -> Iterator[tuple[str, list[str]]]:
    """Name and constant arguments of every Command, Setting and setting that the package makes."""
    for path in sorted(Path(qdqtool.__file__).parent.rglob("*.py")):
        if path.parent.name == "core" and path.stem in {"advice", "commands"}:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                words = [
                    each.value
                    for each in ast.walk(node)
                    if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
                if words:
                    yield node.func.id, words


CALLS = list(made())
COMMANDS = sorted({(words[0], " ".join(words[1:])) for name, words in CALLS if name == "Command"})
KEYS = sorted(
    {
        (match[1], match[2])
        for name, words in CALLS
        if name in {"Setting", "setting"} and (match := KEY.fullmatch(words[0]))
    }
)


@pytest.mark.parametrize(("command", "arguments"), COMMANDS, ids=[" ".join(pair) for pair in COMMANDS])
def test_a_command_that_is_printed_exists_with_its_options(
    command: str, arguments: str, capfd: pytest.CaptureFixture[str]
) -> None:
    group = [word for word in arguments.split()[:1] if command in {"cache", "engine", "recipe"}]
    assert run([command, *group, "--help"]) == 0
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
