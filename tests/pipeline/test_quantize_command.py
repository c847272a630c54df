"""`qdqtool quantize`: one command from a float model to the Q/DQ model that `run` would write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import qdqtool
from qdqtool.cli.app import run
from qdqtool.core.target import Target
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import find
from qdqtool.pipeline import recipes
from tests import models

TAIL = 40.0


@pytest.fixture
def work(tmp_path: Path) -> Path:
    models.save(models.residual_cnn(), tmp_path)
    values = np.random.default_rng(0).standard_normal((12, 3, 16, 16)).astype(np.float32)
    values[:, 0, 0, 0] = TAIL
    np.savez(tmp_path / "s.npz", x=values)
    return tmp_path


def quantize(work: Path, *more: str) -> int:
    words = ["quantize", str(work / "model.onnx"), "--samples", str(work / "s.npz")]
    return run([*words, "-o", str(work / "q.onnx"), *more])


def test_the_command_writes_what_the_library_writes(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize(work) == 0
    said = capsys.readouterr().out
    qdqtool.quantize(str(work / "model.onnx"), str(work / "s.npz"), str(work / "api.onnx"))
    assert (work / "q.onnx").read_bytes() == (work / "api.onnx").read_bytes()
    assert find(load(work / "q.onnx"))
    assert re.search(r": (\d+) of (\d+) compute nodes? and 1 other quantized, ", said)
    assert "dB at the output, before any softmax)" in said


def test_settings_of_the_recipe_hold(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize(work, "--json", "--set", "calibrate.method=max", "--set", "calibrate.bias=keep") == 0
    table = json.loads(capsys.readouterr().out)["data"]
    assert {entry["method"] for entry in table["ranges"]} == {"max"}
    assert max(entry["amax"][0] for entry in table["ranges"] if entry["tensor"] == "x") == TAIL
    assert not table["shifts"]


def test_a_quantized_model_is_refused(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert quantize(work) == 0
    (work / "model.onnx").write_bytes((work / "q.onnx").read_bytes())
    assert quantize(work) == 2
    assert "already has quantized operators" in capsys.readouterr().err


def test_nothing_is_written_where_samples_do_not_fit(work: Path) -> None:
    np.savez(work / "s.npz", x=np.zeros((4, 3, 5, 5), np.float32))
    assert quantize(work) == 5
    assert not (work / "q.onnx").exists()


@pytest.mark.parametrize("target", ["rtx", "10.13"])
def test_the_steps_one_by_one_need_the_target_only_where_the_placement_is_made(
    tmp_path: Path, target: str
) -> None:
    model, placement, table = (tmp_path / name for name in ("model.onnx", "placement.json", "table.json"))
    onnx.save(models.unet(), model)
    assert run(["place", str(model), "--target", target, "--out", str(placement)]) == 0
    samples = ["--samples", "random:2"]
    assert run(["calibrate", str(model), "--placement", str(placement), *samples, "--out", str(table)]) == 0
    parts = ["--placement", str(placement), "--calibration", str(table)]
    assert run(["insert", str(model), *parts, "--out", str(tmp_path / "out.onnx")]) == 0
    transposed = any(node.op_type == "ConvTranspose" for node in onnx.load(tmp_path / "out.onnx").graph.node)
    assert transposed is (target != "rtx")


@pytest.mark.parametrize("setting", ["place.target=10.10", "place.target='10.10'", 'place.target="10.10"'])
def test_a_release_keeps_its_last_zero_however_it_is_typed(setting: str) -> None:
    assert recipes.load(None, [setting]).place.target == Target.parse("10.10").name
