"""`qdqtool sensitivity` on a real model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cli.app import run
from qdqtool.core.kinds import SENSITIVITY
from tests import models


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    proto = models.residual_cnn()
    models.save(proto, tmp_path)
    np.savez(tmp_path / "samples.npz", **models.feeds(proto, 1, 6))
    return tmp_path


def test_a_float_model_is_quantized_and_studied(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["sensitivity", str(folder / "model.onnx"), "--samples", str(folder / "samples.npz")]
    assert run([*command, "--top", "2", "--out", str(folder / "out"), "--json"]) == 0
    text = capfd.readouterr().out
    nodes = json.loads(text)["data"]["nodes"]
    assert [row["exact"] for row in nodes[:3]] == [True, True, False]
    assert SENSITIVITY.read(folder / "out" / "sensitivity.json").nodes[0].node == nodes[0]["node"]
    assert "<h1>Sensitivity of " in (folder / "out" / "sensitivity.html").read_text("utf-8")
    assert run([*command, "--top", "2", "--out", str(folder / "out"), "--json"]) == 0
    assert capfd.readouterr().out == text


def test_the_summary_ends_with_what_to_keep_float(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["sensitivity", str(folder / "model.onnx"), "--samples", str(folder / "samples.npz")]
    assert run([*command, "--min-sqnr", "120"]) == 0
    assert "--set 'place.exclude=[" in capfd.readouterr().out


def test_a_limit_that_nothing_meets_exits_with_1(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "labels.npy", np.zeros(6, np.int64))
    command = ["sensitivity", str(folder / "model.onnx"), "--samples", str(folder / "samples.npz")]
    assert run([*command, "--max-drop", "-1000", "--labels", str(folder / "labels.npy")]) == 1
    assert "no set of float nodes" in capfd.readouterr().err


def test_a_limited_drop_of_an_unknown_task_is_a_clear_error(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = ["sensitivity", str(folder / "model.onnx"), "--samples", str(folder / "samples.npz")]
    assert run([*command, "--max-drop", "1"]) == 2
    assert "--labels" in capfd.readouterr().err


def test_labels_beyond_the_classes_are_a_clear_error(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    np.save(folder / "labels.npy", np.full(6, 999))
    command = ["sensitivity", str(folder / "model.onnx"), "--samples", str(folder / "samples.npz")]
    assert run([*command, "--labels", str(folder / "labels.npy")]) == 5
    assert "the label is 999" in capfd.readouterr().err
