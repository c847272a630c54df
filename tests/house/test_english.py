"""The script that counts hard sentences: what it finds, and that a count may fall but not grow."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared import ROOT

SCRIPT = ROOT / ".ci" / "english.py"
if not SCRIPT.exists():
    pytest.skip("the source distribution has no .ci", allow_module_level=True)

PLAIN = '"""Read a file."""\n'
FOUND = {
    "beginning": '"""What a file holds."""\n',
    "word": '"""Read the quietest table."""\n',
    "private": '"""Read."""\nTEXT = "the node behind it"\n',
    "long": f'"""Read {"a word " * 20}."""\n',
}


def checked(tmp_path: Path, text: str, *options: str) -> tuple[int, str]:
    """The exit code and the output for a project of one file."""
    root, script = tmp_path / "project", tmp_path / ".ci" / "english.py"
    for folder in (root / "qdqtool" / "core", root / "calibrators", root / "docs", script.parent):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        (root / name).write_text("Short.\n", "utf-8")
    (root / "qdqtool" / "core" / "a.py").write_text(text, "utf-8")
    shutil.copy(SCRIPT, script)
    done = subprocess.run(
        [sys.executable, str(script), *options, str(root)], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("rule", FOUND)
def test_a_count_may_not_grow_and_its_place_is_printed(rule: str, tmp_path: Path) -> None:
    assert checked(tmp_path, PLAIN, "--write")[0] == 0
    code, said = checked(tmp_path, FOUND[rule])
    assert code == 1
    assert f"qdqtool/core/a.py:{2 if rule == 'private' else 1}: {rule}:" in said


@pytest.mark.parametrize("rule", FOUND)
def test_a_count_that_fell_is_stored_and_holds_from_then_on(rule: str, tmp_path: Path) -> None:
    assert checked(tmp_path, FOUND[rule], "--write")[0] == 0
    assert checked(tmp_path, FOUND[rule])[0] == 0
    assert checked(tmp_path, PLAIN, "--write")[0] == 0
    limits = json.loads((tmp_path / ".ci" / "english.json").read_text("utf-8"))
    assert limits["qdqtool/core"] == {}
    assert checked(tmp_path, FOUND[rule])[0] == 1


def test_code_tables_and_excused_lines_are_not_prose(tmp_path: Path) -> None:
    assert checked(tmp_path, PLAIN, "--write")[0] == 0
    excused = '"""What a file holds."""  # english: the name of a page\n'
    assert checked(tmp_path, excused)[0] == 0
    page = tmp_path / "project" / "docs" / "a.md"
    page.write_text("```\nthe quietest\n```\n\n| the quietest |\n\n`the quietest`\n", "utf-8")
    assert checked(tmp_path, PLAIN)[0] == 0
    page.write_text("It is the quietest.\n", "utf-8")
    assert checked(tmp_path, PLAIN)[0] == 1
