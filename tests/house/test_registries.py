"""One contract for every plug-in in every registry."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from qdqtool import pages, plugins
from qdqtool.errors import UsageError
from qdqtool.pages import coded_plugins
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
    "qdqtool.pipeline.search.proposers",
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


CODED = ("qdqtool.rules", "qdqtool.auditing.checks", "qdqtool.datachecks.checks")


def test_every_code_belongs_to_one_plugin() -> None:
    found = [Registry(package=package).load(name).code for package, name in ENTRIES if package in CODED]
    assert len(set(found)) == len(found)
    coded_plugins.cache_clear()
    assert list(coded_plugins()) == sorted(found)


def _registry(folder: Path, codes: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Registry:
    package = folder / f"coded_{folder.name}"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name, code in codes.items():
        (package / f"{name}.py").write_text(
            f"from types import SimpleNamespace\nPLUGIN = SimpleNamespace(code={code!r})\n"
        )
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    return Registry(package=package.name)


def test_a_code_that_is_taken_is_refused_with_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = _registry(tmp_path, {"one": "ABC101", "three": "ABC103", "two": "ABC101"}, monkeypatch)
    with pytest.raises(UsageError, match="has the code ABC101, like 'one'") as caught:
        registry.coded()
    assert all(str(Path(f"{name}.py")) in caught.value.what for name in ("one", "two"))
    assert "ABC104" in caught.value.fix


def test_codes_of_their_own_are_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _registry(tmp_path, {"b": "ABC101", "a": "ABC102"}, monkeypatch)
    assert list(registry.coded().items()) == [("ABC101", "b"), ("ABC102", "a")]


def test_a_code_of_another_registry_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _registry(tmp_path, {"guest": "QDQ101"}, monkeypatch)
    monkeypatch.setattr(pages, "_CODED", ("qdqtool.rules", registry.package))
    coded_plugins.cache_clear()
    with pytest.raises(UsageError, match=r"guest.*has the code QDQ101, like the rule"):
        coded_plugins()
    coded_plugins.cache_clear()


@pytest.mark.parametrize("same", [False, True])
def test_a_name_that_two_distributions_offer_is_refused(
    same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless both entries name one module: a distribution may be found twice on the path."""
    for name in ("first", "second"):
        info = tmp_path / name / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        module = "qdqtool.accuracy.metrics.cosine" if same else f"{name}_module"
        (info / "entry_points.txt").write_text(f"[qdqtool.metrics]\nnearness = {module}\n")
        monkeypatch.syspath_prepend(str(tmp_path / name))
    caches = (
        plugins.all_entry_points,
        plugins._find_installed,
        plugins._find_offered_twice,
        plugins._warn_once,
    )
    for cached in caches:
        cached.cache_clear()
    try:
        registry = Registry(package="qdqtool.accuracy.metrics")
        assert ("nearness" in registry.usable()) is same
        if not same:
            with pytest.raises(
                UsageError, match=r"offered by first 1.0 .first_module. and by second 1.0"
            ) as caught:
                registry.load("nearness")
            assert "pip uninstall second" in caught.value.fix
            assert "both offer 'nearness'" in caplog.text
    finally:
        for cached in caches:
            cached.cache_clear()


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


SEVERAL = '''"""Doors.

# front

    drawing

Page of the front door.

# back

Page of the back door.
"""
PLUGIN = {"front": 1, "back": 2}
'''


def _several(folder: Path, files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Registry:
    registry = _registry(folder, {}, monkeypatch)
    for name, text in files.items():
        (folder / registry.package / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    monkeypatch.setattr(plugins, "_SEVERAL", frozenset({registry.package}))
    return registry


def test_a_file_may_hold_several_plugins_each_with_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"doors": SEVERAL, "roof": '"""A roof."""\nPLUGIN = 3\n'}
    registry = _several(tmp_path, files, monkeypatch)
    assert registry.names() == ("back", "front", "roof")
    assert [registry.load(name) for name in registry.names()] == [2, 1, 3]
    assert registry.manual("front") == "    drawing\n\nPage of the front door."
    assert registry.manual("roof") == "A roof."
    assert registry.place("back").endswith("doors.py")


def test_a_name_in_two_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _several(tmp_path, {"doors": SEVERAL, "gates": SEVERAL}, monkeypatch)
    with pytest.raises(UsageError, match=r"doors and .*gates both contain a plug-in 'front'"):
        registry.names()


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
