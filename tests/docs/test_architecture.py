"""docs/architecture.md names modules and functions that exist, and every package."""

from __future__ import annotations

import importlib
import re
from operator import attrgetter

from tests.shared import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PACKAGES = {path.parent.name for path in (ROOT / "qdqtool").glob("*/__init__.py")}
ROW = re.compile(r"^\| [^`|]+ \|(.+)\|$", re.MULTILINE)
NAME = re.compile(r"`([\w.]+):([\w.]+)`")
MODULE = re.compile(r"`(?:qdqtool\.)?(\w+(?:\.\w+)+)`")


def missing(module: str, attribute: str = "") -> bool:
    try:
        found = importlib.import_module(f"qdqtool.{module}")
        return bool(attribute) and attrgetter(attribute)(found) is None
    except (ModuleNotFoundError, AttributeError):
        return True


def test_every_name_of_a_behaviour_exists() -> None:
    named = NAME.findall(PAGE)
    assert len(named) > 40
    assert [f"{module}:{name}" for module, name in named if missing(module, name)] == []


def test_every_behaviour_says_who_decides_records_says_and_prints() -> None:
    rows = [row.split("|") for row in ROW.findall(PAGE) if ":" in row and "---" not in row]
    assert len(rows) > 10
    for row in rows:
        assert len(row) == 4, row
        assert all(NAME.search(cell) for cell in row), row


def test_every_module_that_is_named_exists() -> None:
    named = [name for name in MODULE.findall(PAGE) if name.partition(".")[0] in PACKAGES]
    assert len(named) > 15
    assert [name for name in named if missing(name)] == []


def test_every_package_is_on_the_page() -> None:
    told = re.findall(r"^\| `([\w.]+)` \|", PAGE, re.MULTILINE)
    assert set(told) == {f"qdqtool.{name}" for name in PACKAGES} | {"calibrators"}


def test_the_layers_are_those_of_the_contract() -> None:
    settings = (ROOT / "pyproject.toml").read_text("utf-8")
    listed = re.findall(r"^layers = \[(.*?)^\]", settings, re.MULTILINE | re.DOTALL)[0]
    layers = [set(layer.split(" | ")) for layer in re.findall(r'"(.+?)"', listed)]
    block = re.findall(r"^```\n(cli > .*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
    assert [set(re.findall(r"\w+", layer)) for layer in block.split(">")] == [
        one for one in layers if one not in ({"__main__"}, {"qat"})
    ]
