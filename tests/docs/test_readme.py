"""README.md and CONTRIBUTING.md tell what is there: commands, calls, make targets, files."""

from __future__ import annotations

import re

import pytest

import qdqtool
from qdqtool.cli.app import COMMANDS
from tests.shared import ROOT

README = (ROOT / "README.md").read_text("utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
HOME = re.compile(
    r"https://(?:github\.com/qdqtool/qdqtool/(?:blob|tree)|raw\.githubusercontent\.com/qdqtool/qdqtool)/main/"
)


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)#]+)", text)


def test_the_readme_names_every_command_and_every_call() -> None:
    table = "".join(re.findall(r"^\| (`.*?) \|", README, re.MULTILINE))
    assert set(re.findall(r"`([a-z]+)`", table)) == set(COMMANDS.names())
    told = README.partition("The calls are")[2].partition(".")[0]
    assert sorted(re.findall(r"`(\w+)`", told)) == sorted(qdqtool.__all__)


def test_links_of_the_readme_work_on_the_package_index_too() -> None:
    for target in links(README):
        assert target.startswith("https://"), target
        if match := HOME.match(target):
            assert (ROOT / target[match.end() :]).exists(), target


def test_paths_that_contributing_names_exist() -> None:
    paths = re.findall(r"`((?:calibrators|qdqtool|tests|docs|recipes|benchmarks)/[\w./-]*)`", CONTRIBUTING)
    assert paths
    for path in [*paths, *links(CONTRIBUTING)]:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("text", [README, CONTRIBUTING], ids=["README", "CONTRIBUTING"])
def test_make_targets_that_are_named_exist(text: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^make ([\w-]+)", text, re.MULTILINE)
    assert {"test"} < set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
