"""Folders are made where results go, but nothing is put right below the root of a file system."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.errors import SystemFault
from qdqtool.io.files import make_folder, write_text
from tests.shared import ROOT

DIGITS = ROOT / "recipes" / "examples" / "digits" / "digits.onnx"
NOWHERE = Path(Path.cwd().anchor) / "qdqtool-no-such-folder"


def test_folders_are_made_at_any_depth(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "x")
    assert (tmp_path / "a" / "b" / "c.txt").read_text("utf-8") == "x"
    make_folder(tmp_path / "a" / "b")


@pytest.mark.parametrize("path", [NOWHERE, NOWHERE / "deeper", NOWHERE / "a" / ".." / "b"])
def test_a_folder_that_would_stand_below_the_root_is_refused(path: Path) -> None:
    with pytest.raises(SystemFault, match=re.escape(f"the folder {NOWHERE} does not exist")) as caught:
        make_folder(path)
    assert f"mkdir {NOWHERE}" in caught.value.fix
    assert not NOWHERE.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["convert", str(DIGITS), "--types", "fp16", "-o", str(NOWHERE / "dir" / "o.onnx")],
        ["run", str(DIGITS), "--out", str(NOWHERE / "run")],
        ["recipe", "new", str(DIGITS), "-o", str(NOWHERE / "r.yaml")],
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_leave_the_root_alone(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == SystemFault.exit_code
    assert f"the folder {NOWHERE} does not exist" in capsys.readouterr().err
    assert not NOWHERE.exists()


def test_no_other_place_makes_folders_above_a_folder() -> None:
    makers = [
        path.name for path in (ROOT / "qdqtool").rglob("*.py") if "mkdir(parents" in path.read_text("utf-8")
    ]
    assert makers == ["files.py"]
