"""The log of a build by itself gives the verdicts that it gives beside its model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qdqtool.cli.app import run as cli
from tests.shared import ROOT

pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
DIGITS = ROOT / "recipes" / "examples" / "digits" / "digits.onnx"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("built") / "run"
    changes = ["--set", "place.exclude=[fork/narrow/conv/Conv]"]
    assert cli(["run", str(DIGITS), "--samples", "random:2", "--out", str(out), *changes]) == 0
    return out


def verdicts(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)["data"]["verdicts"]
    return found


@pytest.mark.slow
def test_the_log_alone_gives_every_node_the_precision_that_log_and_model_give(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(["audit", str(folder), "--json"]) == 0
    full = {entry["node"]: entry for entry in verdicts(capsys.readouterr().out)}
    assert cli(["audit", str(folder / "build.log"), "--json"]) == 0
    alone = {entry["node"]: entry for entry in verdicts(capsys.readouterr().out)}
    assert alone.keys() == full.keys()
    for node, entry in alone.items():
        assert entry["precision"] == full[node]["precision"], node
        assert entry["asked"] == full[node]["asked"], node
        assert entry["realised"] == full[node]["realised"], node
    assert [node for node, entry in alone.items() if entry["reason"]] == ["fork/narrow/conv/Conv"]


def test_the_report_of_a_log_counts_nodes_and_names_those_that_are_float(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli(["report", str(folder / "build.log")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("INT8: 11 of 12 compute nodes")
    assert "fork/narrow/conv/Conv" in shown


def test_a_log_that_prints_no_layers_is_judged_by_what_it_says_of_q_and_dq(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, _, rest = (folder / "build.log").read_text("utf-8").partition("Layers:\n")
    assert rest
    log = tmp_path / "cut.log"
    log.write_text(kept, "utf-8")
    for command in ("audit", "report"):
        assert cli([command, str(log)]) == 0
        shown = capsys.readouterr().out
        assert "12 compute nodes" in shown
        assert "prints no layers" in shown
        assert "kernels:" not in shown


def test_a_log_that_tells_of_no_node_is_still_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "empty.log"
    log.write_text("[TRT] [V] nothing of importance\n", "utf-8")
    assert cli(["audit", str(log)]) == 5
    assert "no layer information" in capsys.readouterr().err
