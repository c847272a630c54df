"""A command without samples says how to make some, and the line that it prints works."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from qdqtool.cli.app import run
from tests import models


@pytest.mark.parametrize("name", ["x", "images/in:0"])
def test_the_line_that_saves_samples_makes_samples_that_fit(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    s = models.Sketch()
    s.output(s.conv("c1", s.input(name, [1, 4, 8, 8]), (4, 4)), [1, 4, 8, 8])
    path, out = models.save(s.model(), tmp_path), tmp_path / "q.onnx"
    assert run(["quantize", str(path), "-o", str(out)]) == 2
    said = capsys.readouterr().err
    found = re.search(r"`(np\.savez.*)` \((\w+) is a list of float32 arrays of shape (\[.*?\])", said)
    assert found is not None
    line, variable, shape = found.groups()
    monkeypatch.chdir(tmp_path)
    values = [np.ones([int(size) for size in re.findall(r"\d+", shape)], np.float32)] * 3
    exec(line, {"np": np, variable: values})
    assert run(["quantize", str(path), "-o", str(out), "--samples", "samples.npz"]) == 0
    assert out.exists()
