"""A model alone is built for its audit."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import qdqtool
from qdqtool.cli.app import run as cli
from tests import models

DIGITS = Path(__file__).resolve().parents[2] / "recipes" / "examples" / "digits"


@pytest.mark.rtx
def test_a_model_alone_is_built_and_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    model = tmp_path / "digits.qdq.onnx"
    qdqtool.quantize(DIGITS / "digits.onnx", f"{DIGITS / 'calibration.npz'}[:16]", model)
    assert cli(["audit", str(model), "--json"]) == 0
    verdicts = json.loads(capsys.readouterr().out)["data"]["verdicts"]
    assert {verdict["verdict"] for verdict in verdicts if verdict["op"] == "Conv"} == {"int8"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits.qdq.onnx"]


@pytest.mark.rtx
def test_free_dimensions_are_built_for_usual_shapes_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="building needs the extra rtx")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3, "h", "w"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", values[:1], values[1:])
    model = tmp_path / "free.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), model)
    assert cli(["audit", str(model)]) == 0
    assert "built for 1x3x224x224" in capsys.readouterr().err
    assert cli(["build", str(model), "--out", str(tmp_path / "built")]) == 0
    assert "built for 1x3x224x224" in capsys.readouterr().err


@pytest.mark.rtx
def test_a_float_engine_is_told_as_one_and_never_called_another_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx (pip install 'qdqtool[rtx]')")
    model = models.save(models.unet(), tmp_path)
    assert cli(["audit", str(model)]) == 0
    said = capsys.readouterr().out
    assert "the model does not ask for INT8" in said.splitlines()[0]
    assert "0 of" not in said.splitlines()[0]
    assert "not quantized" not in said
    assert "belongs to this model" not in said
