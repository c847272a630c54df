"""Repair with samples says what ranges measured anew would give, and the commands that it prints give it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from qdqtool.accuracy.compare import compare
from qdqtool.calibration.samples import open_samples
from qdqtool.cli.app import run
from qdqtool.core.recipe import CompareOptions
from qdqtool.core.wording import actions
from qdqtool.graph.onnx_io.load import load
from qdqtool.runtime.runner import open_runner
from tests import models
from tests.placement.qdq import Quantized


def _theirs(tmp_path: Path, step: float) -> Path:
    """A network whose activation has a zero point, and a step for values up to 255 steps."""
    s = Quantized()
    x = s.input("x", [1, 16, 8, 8])
    scale, zero = s.constant("s", np.float32(step)), s.constant("z", np.uint8(128))
    y = s.node("QuantizeLinear", [x, scale, zero], "xq", name="x/Q")
    y = s.node("DequantizeLinear", [y, scale, zero], "xd", name="x/DQ")
    return models.save(s.done(s.raw_conv("c1", y, s.weights("c1_w", 16, 16, 3, 3))), tmp_path, "theirs.onnx")


@pytest.mark.parametrize(("step", "told"), [(0.5, True), (0.03, False)], ids=["far too coarse", "fitting"])
def test_the_way_is_named_with_both_figures_where_it_gains(
    step: float,
    told: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = _theirs(tmp_path, step)
    np.savez("x.npz", x=np.random.default_rng(0).standard_normal((8, 16, 8, 8)).astype(np.float32))
    assert run(["repair", str(theirs), "--out", "mine.onnx", "--samples", "x.npz"]) == 0
    said = capsys.readouterr()
    found = re.search(
        r"reach ([\d.]+) dB against its float model, ranges .* reach\s+([\d.]+) dB.*", said.out + said.err
    )
    assert (found is not None) == told
    if found is None:
        return
    for command in actions(found[0]):
        assert run(command.line.replace("\n", " ").split()[1:]) == 0
    inputs = load(tmp_path / "float.onnx").view.inputs
    before, after = (open_runner(tmp_path / name, description=name) for name in ("float.onnx", "mine.onnx"))
    level = compare(before, after, open_samples("x.npz", inputs), CompareOptions()).sqnr
    assert level is not None
    assert level.sqnr_db == pytest.approx(float(found[2]), abs=0.5)
