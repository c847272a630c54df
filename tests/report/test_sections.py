"""Sections of the report are plug-ins: one file brings one to the page, the terminal and report.json."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from rich.console import Console

from qdqtool import plugins
from qdqtool.core import kinds
from qdqtool.core.fixes import FixOutcome, FixReport, FixTrial, Metrics
from qdqtool.core.journal import Journal, TrialOutcome, TrialRecord
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
        own = plugins._find_installed
        monkeypatch.setattr(
            plugins,
            "_find_installed",
            lambda group: entries if group == "qdqtool.report.sections" else own(group),
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


def test_one_table_shows_what_every_search_tried(tmp_path: Path) -> None:
    record = TrialRecord(
        what="mean of tied calibrators", outcome=TrialOutcome.KEPT, why="less noise", gain=0.5, samples=32
    )
    journal = Journal(search="ranges", objective="SQNR of the outputs", unit="dB", trials=(record,))
    assert FULL.table is not None
    kinds.CALIBRATION.write(tmp_path / "calibration.json", replace(FULL.table, journal=journal))
    kept = FixTrial(subject="conv", edit="float <input>", outcome=FixOutcome.KEPT, why="fewer kernels")
    engine = Metrics(int8=1, compute=1, kernels=3, conversions=0, activation_bytes=None, accuracy=None)
    fixes = FixReport(
        model="m", trials=(kept,), before=engine, after=engine, builds=1, budget=1, metric="", max_drop=0.0
    )
    kinds.FIXES.write(tmp_path / "fixes.json", fixes)
    report = replace(assemble(FULL), sections=section.collect_data(tmp_path))
    page = render(report)
    table = page[page.index('id="tried-a"') :]
    assert table.index("mean of tied calibrators") < table.index("conv: float &lt;input&gt;")
    assert "+0.50 dB" in table
    said = printed(report)
    assert "ranges: 1 candidate, kept: mean of tied calibrators" in said
    assert "fixes: 1 candidate, kept: conv: float <input>" in said


def test_a_folder_without_a_search_has_no_such_table(tmp_path: Path) -> None:
    assert FULL.table is not None
    kinds.CALIBRATION.write(tmp_path / "calibration.json", FULL.table)
    assert "tried" not in section.collect_data(tmp_path)
    assert 'id="tried-a"' not in render(assemble(FULL))
