"""Sections of the report are plug-ins: one file brings one to the page, the terminal and report.json."""

from __future__ import annotations

import io
import json
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from rich.console import Console

from qdqtool import plugins
from qdqtool.core import kinds
from qdqtool.pipeline.report import read_material, read_report
from qdqtool.report import section, terminal
from qdqtool.report.assemble import assemble
from qdqtool.report.html import render
from tests.report.material import AUDIT, FULL


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Sections of other distributions, by name."""

    def install(**modules: str) -> None:
        entries = {
            name: EntryPoint(name=name, value=module, group="qdqtool.report.sections")
            for name, module in modules.items()
        }
        own = plugins._installed
        monkeypatch.setattr(
            plugins, "_installed", lambda group: entries if group == "qdqtool.report.sections" else own(group)
        )
        section.sections.cache_clear()

    yield install
    section.sections.cache_clear()


def printed(report) -> str:
    out = io.StringIO()
    terminal.render(report, Console(file=out, width=200))
    return out.getvalue()


def test_sections_stand_in_their_order_and_those_without_material_are_left_out() -> None:
    page = render(assemble(FULL))
    places = [
        page.find(f'id="{name}-a"') for name in ("fixes", "graph", "nodes", "layers", "accuracy", "ranges")
    ]
    assert places == sorted(places)
    assert min(places) > 0
    assert 'id="ledger-a"' not in page


def test_a_section_of_another_distribution_is_on_the_page_the_terminal_and_in_the_json(
    installed, tmp_path: Path
) -> None:
    installed(extra="tests.report.extra_section")
    kinds.AUDIT.write(tmp_path / "findings.json", AUDIT)
    (tmp_path / "memory.json").write_text(json.dumps({"peak": 7}))
    report = read_report(tmp_path)
    assert report.sections == {"extra": {"peak": 7}}
    assert json.loads(kinds.REPORT.dump(report))["data"]["sections"] == {"extra": {"peak": 7}}
    assert "7 MiB" in render(report)
    assert 'href="#extra-a"' in render(report)
    assert "conv1 3 MiB" in printed(report)


def test_a_broken_section_is_named_and_takes_nothing_down(
    installed, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    installed(broken="tests.report.broken_section", gone="tests.report.no_such_module")
    before = assemble(FULL)
    assert "Findings" in printed(before)
    assert 'id="fixes-a"' in render(before)
    kinds.AUDIT.write(tmp_path / "findings.json", AUDIT)
    assert read_material(tmp_path).sections == {}
    assert "broken" in caplog.text
    assert "no_such_module" in caplog.text
