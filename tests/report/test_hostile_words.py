"""Texts of every field of every artefact, through every form of output, stay texts: one law over the registries."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

from qdqtool.auditing.full_audit import ci_report as audit_results
from qdqtool.buildlog.outputs import TABLES, table_of, write_events
from qdqtool.cli import engine_words, log_words
from qdqtool.cli.commands import audit, calibrate, engine, fix, lint, place, predict, repair, scales
from qdqtool.cli.screen import show_table, stdout
from qdqtool.core import kinds
from qdqtool.core.artefacts import Artefact
from qdqtool.core.buildlog import RunDigest
from qdqtool.core.calibration import CalibrationTable
from qdqtool.core.explore import EngineView
from qdqtool.engine import layer_table
from qdqtool.io import ci
from qdqtool.io.tables import csv_of
from qdqtool.pipeline.report import read_report
from qdqtool.placement.lint import ci_report as lint_results
from qdqtool.report import sweeps, terminal
from qdqtool.report.figures import write_figures
from qdqtool.report.html import render
from qdqtool.report.section import sections
from qdqtool.report.svg import standalone
from tests.hostile import WORDS, filled

KINDS = {entry.kind: entry for entry in vars(kinds).values() if isinstance(entry, Artefact)}
TURNS = [turn if turn % 4 == 0 else pytest.param(turn, marks=pytest.mark.slow) for turn in range(len(WORDS))]
"""Which word the first text is: all of them together put every word into every field."""
_STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def _say(lines: Any) -> None:
    for line in lines:
        stdout().print(line, markup=False, highlight=False)


def _show_calibration(table_: CalibrationTable) -> None:
    calibrate._show(table_)
    calibrate._show_journal(table_)
    _say(calibrate._list_decisions(table_, table_.ranges[0].tensor))


def _show_engine(view: EngineView) -> None:
    engine._print(engine._table(view, (), "", None))
    _say([*engine_words.summary(view, 1), *engine_words.stories(view, view.layers)])


def _show_prediction(found: Any) -> None:
    for make in (predict._floats, predict._kernels, predict._nodes, predict._fates):
        show_table(make(found))
    _say(predict._summary(found))


def _show_sweep(found: Any) -> None:
    show_table(sweeps.table(found), spare=sweeps.SPARE)
    _say(sweeps.notes(found))


def _show_training(found: Any) -> None:
    show_table(terminal.table(found))
    _say(terminal.notes(found))


def _show_digest(words: tuple[str, ...]) -> None:
    digest = filled(RunDigest, words)
    print(log_words.digest_words(digest) + log_words.brief_words(digest), end="")


SHOWN: dict[str, Callable[[Any], object]] = {
    "accuracy": lambda found: terminal.render_comparison(found, stdout()),
    "audit": audit._print,
    "calibration": _show_calibration,
    "engine-diff": lambda found: _say(line for one in found.diffs for line in engine_words.difference(one)),
    "engine-view": _show_engine,
    "fixes": fix._show,
    "lint": lambda found: lint._show(found, Path("m.onnx")),
    "log-diff": lambda found: print(log_words.diff_words(found), end=""),
    "placement": lambda found: place._show(found, "2 of 2 compute nodes"),
    "prediction": _show_prediction,
    "qat": _show_training,
    "readback": lambda found: show_table(scales._table(found, "*")),
    "repair": repair._show,
    "report": lambda found: terminal.render(found, stdout(), {WORDS[0]: {"seconds": 1.0}}),
    "sensitivity": lambda found: terminal.render_sensitivity(found, stdout()),
    "sweep": _show_sweep,
}
"""How a command prints what it found, by kind of artefact."""
PARTS = {
    "build",
    "conversion",
    "data",
    "engine",
    "insertion",
    "limit",
    "log",
    "noop",
    "preparation",
    "explanation",
    "worth",
}
"""Kinds that are shown as parts of a report, or in a sentence of their command; an explanation holds our own pages only."""


class Page(HTMLParser):
    """Collects what a page holds: elements with what they are called, and texts a person reads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def is_harmless(text: str) -> None:
    """Nothing of a page came out of a name but text that reads as it stands there."""
    text.encode("utf-8")
    page = Page(text)
    assert not {"img", "link", "b id"} & set(page.tags)
    assert [name for name, _ in page.attributes if name.startswith("on")] == []
    assert not [value for name, value in page.attributes if name == "id" and "pwned" in value]
    assert not [
        value
        for name, value in page.attributes
        if name in {"href", "src"} and value[:1] != "#" and "://" in value
    ]
    scripts = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    inside = [json.dumps(json.loads(one), ensure_ascii=False) for one in scripts]
    for shown in (*page.texts, *(value for _, value in page.attributes), *inside):
        assert not _STEERS.search(shown), shown[:200]
    assert str(7 * 191) not in text


def is_plain(text: str) -> None:
    """Text for a terminal or a log of a runner: no controls, no line that a runner obeys."""
    text.encode("utf-8")
    assert {char for char in text if not char.isprintable() and char != "\n"} == set()
    assert [line for line in text.splitlines() if line.lstrip().startswith("::")] == []


def test_every_kind_of_artefact_is_shown_by_this_file() -> None:
    assert set(SHOWN) | PARTS == set(KINDS)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_json_holds_hostile_texts_as_they_are_and_can_be_read_again(kind: str, tmp_path: Path) -> None:
    artefact, path = KINDS[kind], tmp_path / "a.json"
    artefact.write(path, filled(artefact.type))
    text = path.read_text("utf-8")
    assert not _STEERS.search(text)
    assert artefact.dump(artefact.read(path)) == text


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("kind", ["digest", *sorted(SHOWN)])
def test_no_text_of_an_artefact_steers_the_terminal(
    kind: str, turn: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = WORDS[turn:] + WORDS[:turn]
    if kind == "digest":
        _show_digest(words)
    else:
        SHOWN[kind](filled(KINDS[kind].type, words))
    said = capsys.readouterr()
    assert said.out
    is_plain(said.out)
    is_plain(said.err)


def _hostile_folder(folder: Path, words: tuple[str, ...] = WORDS) -> None:
    """A run folder in which every artefact is hostile, named as sections read it."""
    for artefact in KINDS.values():
        artefact.write(
            folder / f"{_FILES.get(artefact.kind, artefact.kind)}.json", filled(artefact.type, words)
        )
    (folder / "report.json").unlink()
    names = [word.encode("utf-8", "ignore").decode() for word in words]
    tensors = [f"{name}{number}" for number, name in enumerate([*names, ""])]
    nodes = [
        helper.make_node("Relu", [tensors[number]], [tensors[number + 1]], name=name)
        for number, name in enumerate(names)
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in (tensors[0], tensors[-1])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])), folder / "model.qdq.onnx")


_FILES = {"audit": "findings", "engine": "layers"}


@pytest.mark.parametrize("turn", TURNS)
def test_every_section_of_the_report_keeps_texts_texts(turn: int, tmp_path: Path) -> None:
    words = WORDS[turn:] + WORDS[:turn]
    _hostile_folder(tmp_path, words)
    read = read_report(tmp_path)
    report = filled(kinds.REPORT.type, words)
    report.sections.clear()
    report.sections.update(read.sections)
    silent = [name for name, section in sections() if not section.shown(report)]
    assert silent == [], "a section has nothing to show: let its artefact be read here"
    page = render(report)
    for name, section in sections():
        if section.title:
            assert f'id="{name}-a"' in page
    for shown in (page, render(read), render(report, read, names=(words[0], words[1]))):
        is_harmless(shown)
    for shown in (report, read):
        out = io.StringIO()
        terminal.render(shown, Console(file=out, width=120))
        is_plain(out.getvalue())


@pytest.mark.parametrize("turn", TURNS)
def test_other_forms_keep_texts_texts(turn: int, tmp_path: Path) -> None:
    words = WORDS[turn:] + WORDS[:turn]
    is_harmless(sweeps.page(filled(kinds.SWEEP.type, words)))
    drawings = [
        path.read_text("utf-8") for path in write_figures(filled(kinds.REPORT.type, words), tmp_path, "svg")
    ]
    drawings.append(standalone(sweeps.chart(filled(kinds.SWEEP.type, words))))
    assert len(drawings) > 3
    for drawing in drawings:
        is_harmless(drawing)
        assert {node.tag.rpartition("}")[2] for node in ET.fromstring(drawing).iter()} <= {
            "svg", "style", "g", "rect", "text", "title", "path", "line", "circle", "polyline", "polygon", "tspan",
        }  # fmt: skip
    view = filled(kinds.ENGINE_VIEW.type, words)
    is_plain(layer_table.dot(view, dict.fromkeys(("int8", "fp32"), "#000000")))
    log = filled(kinds.LOG.type, words)
    tables = [
        layer_table.table_of(view.layers, layer_table.COLUMNS),
        *(table_of(log, name) for name in TABLES),
    ]
    for text in map(csv_of, tables):
        assert not _STEERS.search(text)
        text.encode("utf-8")
        for row in csv.reader(io.StringIO(text)):
            assert not [cell for cell in row if cell.lstrip(" ")[:1] in {"=", "@"}]
    write_events(log, tmp_path / "events.jsonl")
    lines = (tmp_path / "events.jsonl").read_text("utf-8")
    assert not _STEERS.search(lines)
    assert all(json.loads(line) for line in lines.split("\n") if line)


@pytest.mark.parametrize("form", ["sarif", "junit", "markdown", "github"])
@pytest.mark.parametrize("kind", ["audit", "lint"])
@pytest.mark.parametrize("turn", TURNS)
def test_forms_for_runners_keep_texts_texts(turn: int, kind: str, form: str) -> None:
    words = WORDS[turn:] + WORDS[:turn]
    results = {"audit": audit_results, "lint": lint_results}[kind]
    text = ci.write(results(filled(KINDS[kind].type, words), words[0]), form)
    text.encode("utf-8")
    assert not _STEERS.search(text)
    if form == "sarif":
        assert json.loads(text)["runs"]
    elif form == "junit":
        assert ET.fromstring(text.encode("utf-8")).tag == "testsuites"
    elif form == "markdown":
        assert not re.search(r"(?<!\\)<(script|img|b)|(?<!\\)!\\?\[x", text)
    else:
        assert all(re.match(r"::(error|warning|notice) file=", line) for line in text.splitlines())
