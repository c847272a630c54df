"""The commands in the heads of shipped recipes: those with small inputs run as they stand, the others are well formed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import onnx
import pytest

from qdqtool.cli.app import application, run
from tests import models
from tests.placement.qdq import GRAPHS
from tests.recipes.test_shipped_recipes import FILES

_COMMAND = re.compile(r"^#\s+(?:\w+=\S+ )?(qdqtool .+)$")
_INLINE = re.compile(r"`(qdqtool \w[^`]* [^`]+)`")


def commands(path: Path) -> Iterator[str]:
    """The commands of a recipe's head, each in one line."""
    head = [line for line in path.read_text("utf-8").splitlines() if line.startswith("#")]
    typed = ""
    for line in [*head, "#"]:
        found, goes_on = _COMMAND.match(line), typed and re.match(r"^#\s{8,}(?!qdqtool )(\S.*)$", line)
        if goes_on:
            typed += f" {goes_on[1]}"
            continue
        if typed:
            yield typed.removesuffix(" ...")
        typed = found[1] if found else ""
    whole = " ".join(line.lstrip("# ") for line in head)
    yield from (found for found in _INLINE.findall(whole) if " --" in found)


TYPED = [(path.stem, command) for path in FILES for command in commands(path)]


@pytest.mark.parametrize(("recipe", "command"), TYPED)
def test_a_command_in_a_head_exists_with_its_arguments(recipe: str, command: str) -> None:
    _, *words = shlex.split(command)
    found: click.Command = application()
    context = click.Context(found)
    while isinstance(found, click.Group):
        name = words.pop(0)
        known = found.get_command(context, name)
        assert known is not None, f"{recipe}: {command}"
        found = known
    found.make_context(found.name or "", words)


@pytest.mark.rtx
@pytest.mark.parametrize("recipe", ["third-party-qdq", "from-calibration-cache"])
def test_commands_over_small_files_run_one_after_the_other(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
    monkeypatch.chdir(tmp_path)
    made = GRAPHS["chain_ok"]() if recipe == "third-party-qdq" else models.conv_chain()
    onnx.save(made, "model.onnx")
    names = {name for node in made.graph.node for name in node.output} | {
        one.name for one in made.graph.input
    }
    scale = np.float32(0.02).view(np.uint32)
    entries = "".join(f"{name}: {scale + at:08x}\n" for at, name in enumerate(sorted(names)))
    Path("calibration.cache").write_text(f"TRT-8601-EntropyCalibration2\n{entries}", "utf-8")
    typed = [command for name, command in TYPED if name == recipe and "<" not in command]
    assert len(typed) > 2
    for command in typed:
        assert run(shlex.split(command)[1:]) == 0, command
