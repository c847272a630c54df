"""Killed anywhere, a training goes on to the same bits, and no file is ever half written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'qdqtool[qat]'")

from tests.qat import material  # noqa: E402
from tests.qat.test_training import fit, weights_of  # noqa: E402

ROOT = Path(material.HERE).parents[1]
TRAIN = """
import os, signal, sys
from pathlib import Path
from qdqtool.backends.torch_qat import training
from tests.qat.test_training import fit

place, number = sys.argv[2].split(":")
left = iter(range(int(number)))

def until(function, tear=False):
    def wrapped(*arguments, **keywords):
        if next(left, None) is None:
            if tear:
                arguments[0].write_bytes(b"half a file")
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keywords)
    return wrapped

if place == "step":
    training._TrainingRun._step = until(training._TrainingRun._step)
if place == "checkpoint":
    training.write_bytes = until(training.write_bytes)
if place == "rename":
    Path.replace = until(Path.replace, tear=True)
fit(Path(sys.argv[1]), "qat.epochs=4", into="killed")
"""
EXPORT = """
import os, signal, sys
from pathlib import Path
import torch
from tests.qat.material import network_of

def torn(*arguments, **keywords):
    Path(arguments[2]).write_bytes(b"half a model")
    os.kill(os.getpid(), signal.SIGKILL)

network = network_of("mixed")
torch.onnx.export = torn
network.export(Path(sys.argv[1]) / "model.onnx")
"""


def killed(script: str, *arguments: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments], cwd=ROOT, check=False, timeout=300
    )
    assert ended.returncode == -signal.SIGKILL


def test_a_training_killed_three_times_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole, first = fit(tmp_path, "qat.epochs=4", into="whole")
    # Before the first checkpoint.pt and after best.pt; while a file takes its place; in the middle of an epoch.
    for place in ("checkpoint:1", "rename:2", "step:4"):
        killed(TRAIN, str(tmp_path), place)
    resumed, second = fit(tmp_path, "qat.epochs=4", into="killed")
    assert [epoch.loss for epoch in first.epochs] == [epoch.loss for epoch in second.epochs]
    assert [epoch.score for epoch in first.epochs] == [epoch.score for epoch in second.epochs]
    assert [entry.amax for entry in first.table.ranges] == [entry.amax for entry in second.table.ranges]
    known = weights_of(whole)
    assert all(torch.equal(known[name], value) for name, value in weights_of(resumed).items())
    lines = (tmp_path / "killed" / "training.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["number"] for line in lines] == [0, 1, 2, 3, 4]


def test_an_export_killed_in_the_middle_leaves_the_old_model(tmp_path: Path) -> None:
    network = material.network_of("mixed")
    network.export(tmp_path / "model.onnx")
    good = (tmp_path / "model.onnx").read_bytes()
    killed(EXPORT, str(tmp_path))
    assert (tmp_path / "model.onnx").read_bytes() == good
    assert len(list(tmp_path.iterdir())) == 2
    network.export(tmp_path / "model.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
