"""The help of every command: examples that can be typed, values that a shell completes, options spelled alike."""

from __future__ import annotations

import inspect
import os
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer

from qdqtool.cli.app import COMMANDS, application
from qdqtool.cli.options import examples

GROUPS = {name for name in COMMANDS.names() if isinstance(COMMANDS.load(name), typer.Typer)}


def lines_of(name: str) -> list[str]:
    return [line.strip() for line in examples(COMMANDS.manual(name)).splitlines()[2:]]


def command_of(words: list[str]) -> Any:
    found = application()
    for word in words[:2]:
        found = getattr(found, "commands", {}).get(word, found)
    return found


@pytest.mark.parametrize("name", COMMANDS.names())
def test_every_help_ends_with_examples_whose_options_exist(name: str) -> None:
    lines = lines_of(name)
    assert lines, name
    for line in lines:
        program, first, *words = shlex.split(line.partition(" -- ")[0], comments=True)
        assert (program, first) == ("qdqtool", name), line
        command = command_of([first, *words])
        known = {option for parameter in command.params for option in parameter.opts}
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert given <= known, line


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_every_command_of_a_group_has_examples_of_its_own(name: str) -> None:
    for own, command in command_of([name]).commands.items():
        lines = [line.strip() for line in (command.epilog or "").splitlines()[2:]]
        assert lines, (name, own)
        for line in lines:
            assert f"{line} ".startswith(f"qdqtool {name} {own} ")
            context = command.make_context(own, shlex.split(line)[3:])
            assert context.params.keys() == {parameter.name for parameter in command.params} - {"help"}


def test_every_command_that_runs_models_takes_libraries_of_custom_operators() -> None:
    options = {
        name: {word for one in command_of([name]).params for word in one.opts}
        for name in COMMANDS.names()
        if name not in GROUPS
    }
    # time and report take a GPU by name; yolo exports its models itself, without operators of plug-ins
    running = {name for name, words in options.items() if "--device" in words} - {
        "time",
        "report",
        "yolo",
    }  # these take a GPU by name
    assert running >= {"run", "quantize", "calibrate", "compare", "sensitivity", "sweep", "fix"}
    assert {name for name in running if "--custom-ops" not in options[name]} == set()
    assert {name for name in ("run", "sweep", "fix") if "--plugins" not in options[name]} == set()


def test_help_shows_the_examples() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "qdqtool", "audit", "--help"], capture_output=True, text=True, check=True
    )
    assert "Examples:" in done.stdout
    assert "\n  qdqtool audit runs/digits\n" in done.stdout.replace("\n    ", "\n  ")


SPELLINGS = {"recipe": {"-r", "--recipe"}, "out": {"-o", "--out"}, "as_json": {"--json"}}


@pytest.mark.parametrize("name", sorted(set(COMMANDS.names()) - GROUPS))
def test_an_option_has_one_spelling_and_one_short_form(name: str) -> None:
    for parameter in command_of([name]).params:
        wanted = SPELLINGS.get(parameter.name)
        if wanted and parameter.param_type_name == "option":
            assert set(parameter.opts) == wanted, (name, parameter.name)


def test_a_shell_completes_recipes_and_builders() -> None:
    for words, expected in (
        ("qdqtool run m.onnx --recipe conv", "conv-int8"),
        ("qdqtool run --builder r", "rtx"),
    ):
        env = {**os.environ, "_QDQTOOL_COMPLETE": "complete_bash", "COMP_WORDS": words,
               "COMP_CWORD": str(len(words.split()) - 1)}  # fmt: skip
        code = "from qdqtool.cli.app import application; application()(prog_name='qdqtool')"
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env
        )
        assert expected in done.stdout.split(), (words, done.stdout, done.stderr)


def test_importing_the_library_leaves_no_device_id(tmp_path: Any) -> None:
    env = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    env |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
    code = "import qdqtool, onnxruntime"
    subprocess.run([sys.executable, "-c", code], check=True, env=env)
    assert list(tmp_path.rglob("deviceid")) == []


def test_signatures_are_still_those_of_the_commands() -> None:
    for name in sorted(set(COMMANDS.names()) - GROUPS):
        plugin = COMMANDS.load(name)
        names = {parameter.name for parameter in command_of([name]).params}
        assert set(inspect.signature(plugin).parameters) <= names | {"help"}
