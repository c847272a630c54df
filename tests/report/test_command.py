"""`qdqtool report` on run folders and on engines alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qdqtool.cli.app import run
from qdqtool.core import kinds
from qdqtool.core.engine import Role
from qdqtool.core.tensors import DType
from qdqtool.report.assemble import assemble
from tests.report.material import ENGINE, FULL, chain_material


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kinds.REPORT.write(tmp_path / "a" / "report.json", assemble(FULL))
    kinds.REPORT.write(tmp_path / "b" / "report.json", assemble(chain_material(5)))
    kinds.ENGINE.write(tmp_path / "engine.json", ENGINE)
    return tmp_path


def test_the_summary_is_the_answer(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder / "a")]) == 0
    assert capfd.readouterr().out.startswith("Verdict: bad\n")


def test_json_is_exactly_the_artefact(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(folder / "a"), "--json"]) == 0
    text = capfd.readouterr().out
    assert text == (folder / "a" / "report.json").read_text("utf-8")
    assert json.loads(text)["data"]["summary"]["nodes_int8"] == 1


def test_the_page_lies_in_the_run_folder_and_pictures_where_asked(folder: Path) -> None:
    assert run(["report", str(folder / "a"), "--html", "--charts", str(folder / "charts")]) == 0
    assert (folder / "a" / "report.html").read_text("utf-8").startswith("<!doctype html>")
    assert (folder / "charts" / "engine-graph.svg").is_file()


def test_the_page_of_an_engine_does_not_replace_the_page_of_its_run(folder: Path) -> None:
    (folder / "report.html").write_text("the whole run")
    assert run(["report", str(folder / "engine.json"), "--html"]) == 0
    assert (folder / "report.html").read_text() == "the whole run"
    assert (folder / "engine.report.html").read_text("utf-8").startswith("<!doctype html>")


def test_two_runs_make_one_page(folder: Path) -> None:
    page = folder / "both.html"
    assert run(["report", str(folder / "a"), "--against", str(folder / "b"), "--out", str(page)]) == 0
    assert "Two runs side by side" in page.read_text("utf-8")


def test_an_engine_alone_has_a_report_with_its_times(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    profile = [{"count": 10}, {"name": "conv1", "timeMs": 5.0, "averageMs": 0.5, "percentage": 100.0}]
    (folder / "profile.json").write_text(json.dumps(profile))
    command = ["report", str(folder / "engine.json"), "--profile", str(folder / "profile.json"), "--json"]
    assert run(command) == 0
    layers = json.loads(capfd.readouterr().out)["data"]["layers"]
    assert [layer["ms"] for layer in layers] == [0.5, None]


def test_an_engine_of_another_format_alone_is_not_called_int8(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    layers = tuple(
        replace(layer, precision=DType.FLOAT8) if layer.role is Role.COMPUTE else layer
        for layer in ENGINE.layers
    )
    kinds.ENGINE.write(folder / "fp8.json", replace(ENGINE, layers=layers))

    assert run(["report", str(folder / "fp8.json")]) == 0

    count = sum(layer.role is Role.COMPUTE for layer in ENGINE.kernels)
    said = capfd.readouterr().out
    assert f"Formats: fp8 {count} of {count} compute kernels" in said
    assert "INT8" not in said


def test_an_engine_alone_is_audited_and_told_with_its_log(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "build.log").write_text(
        "[V] Running: ConvReluFusion on conv1\n[V] ConvReluFusion: Fusing conv1 with relu\n"
    )
    command = ["report", str(folder / "engine.json"), "--log", str(folder / "build.log"), "--json"]
    assert run(command) == 0
    data = json.loads(capfd.readouterr().out)["data"]
    assert [len(layer["history"]["events"]) for layer in data["layers"]] == [1, 0]
    assert data["summary"]["nodes_total"] is None


def test_two_engines_on_one_page_say_why_they_differ(folder: Path) -> None:
    page, engine = folder / "both.html", str(folder / "engine.json")
    kinds.ENGINE.write(folder / "other.json", chain_material(5).engine)
    assert run(["report", engine, "--against", str(folder / "other.json"), "--out", str(page)]) == 0
    assert "Why they differ" in page.read_text("utf-8")


def test_a_folder_without_artefacts_exits_with_5(tmp_path: Path) -> None:
    assert run(["report", str(tmp_path)]) == 5


def test_a_named_gpu_gives_the_roofs_and_what_bounds_each_layer(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["report", str(folder / "engine.json"), "--device", "NVIDIA A10", "--json"]) == 0
    data = json.loads(capfd.readouterr().out)["data"]
    assert data["device"]["name"] == "NVIDIA A10"
    assert run(["report", str(folder / "a"), "--device", "NVIDIA A10"]) == 2
    assert "--device needs the layers of an engine" in capfd.readouterr().err
