"""One contract for every plug-in in every registry."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from qdqtool.errors import UsageError
from qdqtool.plugins import Registry

PACKAGES = (
    "calibrators.methods",
    "qdqtool.backends.builders",
    "qdqtool.rules",
    "qdqtool.buildlog.patterns",
    "qdqtool.auditing.checks",
    "qdqtool.datachecks.checks",
    "qdqtool.accuracy.metrics",
    "qdqtool.report.sections",
    "qdqtool.cli.commands",
)
ENTRIES = [(package, name) for package in PACKAGES for name in Registry(package=package).names()]


@pytest.mark.parametrize(("package", "name"), ENTRIES, ids=[f"{package}:{name}" for package, name in ENTRIES])
def test_a_plugin_has_a_plug_and_a_manual(package: str, name: str) -> None:
    registry = Registry(package=package)
    assert registry.load(name) is not None
    assert registry.manual(name)


def test_no_two_registries_share_a_group_of_entry_points() -> None:
    groups = [Registry(package=package).entry_point_group for package in PACKAGES]
    assert sorted(set(groups)) == sorted(groups)
    assert set(documented_groups()) == set(groups)


def documented_groups() -> list[str]:
    """The groups that the page about plug-ins names."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "extending.md").read_text("utf-8")
    return re.findall(r"^\|[^|]+\| `[\w.]+` \| `(qdqtool\.[\w.]+)` \|", text, re.MULTILINE)


def test_an_unknown_name_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(UsageError) as caught:
        Registry(package="qdqtool.cli.commands").load("runn")
    assert "'run'" in caught.value.fix


def test_a_file_without_a_plug_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "registry_without_plugin"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "thing.py").write_text('"""A thing."""')
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    with pytest.raises(UsageError, match="has no PLUGIN"):
        Registry(package="registry_without_plugin").load("thing")


def test_names_are_found_without_importing_the_plugins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "registry_of_bombs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "bomb.py").write_text("raise RuntimeError")
    (package / "_private.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert Registry(package="registry_of_bombs").names() == ("bomb",)
