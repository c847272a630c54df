"""What TensorRT for RTX really says about a wrong model is in the table of causes, and the build prints that fix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qdqtool.cli.app import run
from qdqtool.core.advice import with_files
from qdqtool.trt.causes import by_name
from tests import models

pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")


def _half_and_float(sketch: models.Sketch) -> None:
    x = sketch.input("x", [1, 4])
    half = sketch.node("Cast", [x], "half", name="cast", to=10)
    sketch.output(sketch.node("Add", [half, x], "y", name="add"), None)


def _negative_scale(sketch: models.Sketch) -> None:
    x = sketch.input("x", [1, 4])
    scale, zero = sketch.constant("scale", np.float32(-0.1)), sketch.constant("zero", np.int8(0))
    q = sketch.node("QuantizeLinear", [x, scale, zero], "q_out", name="q")
    sketch.output(sketch.node("DequantizeLinear", [q, scale, zero], "y", name="dq"), None)


def _int32_bias(sketch: models.Sketch) -> None:
    x = sketch.input("x", [1, 4])
    bias, scale = sketch.constant("bias", np.ones(4, np.int32)), sketch.constant("scale", np.float32(0.1))
    dq = sketch.node("DequantizeLinear", [bias, scale], "dq_out", name="dq")
    sketch.output(sketch.node("Add", [x, dq], "y", name="add"), None)


@pytest.mark.parametrize(
    ("write", "cause"),
    [(_half_and_float, "types-differ"), (_negative_scale, "bad-scale"), (_int32_bias, "int32-bias")],
    ids=["types", "scale", "bias"],
)
def test_a_refused_model_gets_the_fix_of_its_cause(
    write: object, cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sketch = models.Sketch()
    assert callable(write)
    write(sketch)
    path = str(models.save(sketch.model(), tmp_path))
    assert run(["build", path, "--out", str(tmp_path / "b")]) == 4
    said = " ".join(capsys.readouterr().err.split())
    assert " ".join(with_files(by_name(cause).fix, path).split()) in said
    assert run(["parse", str(tmp_path / "b" / "build.log")]) == 0
    assert by_name(cause).meaning in " ".join(capsys.readouterr().out.split())
