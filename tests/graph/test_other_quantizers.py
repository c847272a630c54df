"""Quantizers of other tools: never a float model, Q/DQ where these compute the same, else the export to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from qdqtool.cli.app import run
from qdqtool.core.findings import Severity
from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.load import load
from qdqtool.graph.qdq.find import quantized_ops
from qdqtool.pipeline import recipes
from qdqtool.pipeline.repair import RepairRequest, repair_file
from qdqtool.placement.lint import lint
from tests import models

QONNX = "qonnx.custom_op.general"
QUARK = "com.amd.quark"


def _quant(
    s: models.Sketch, x: str, name: str, scale: Any, bits: float = 8, zero: float = 0, **of: Any
) -> str:
    given = [s.constant(f"{name}_{part}", np.asarray(value, np.float32)) for part, value in
             (("s", scale), ("z", zero), ("b", bits))]  # fmt: skip
    of = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"} | of
    return s.node("Quant", [x, *given], f"{name}_d", name=name, domain=QONNX, **of)


def qonnx(activation: dict[str, Any], weight: dict[str, Any]) -> onnx.ModelProto:
    s = models.Sketch()
    x = _quant(s, s.input("x", [1, 3, 8, 8]), "qx", **{"scale": 0.02, **activation})
    w = _quant(s, s.weight("w", 4, 3, 3, 3), "qw", **{"scale": np.full((4, 1, 1, 1), 0.05), **weight})
    s.output(s.node("Conv", [x, w], "y", name="conv"), [1, 4, 6, 6])
    return s.model(17, domains=[QONNX])


def rounded(value: Any, scale: Any, bits: int, narrow: int) -> Any:
    """What QONNX's documentation says of Quant, signed and with zero point 0."""
    high = 2 ** (bits - 1) - 1
    return np.clip(np.round(value / scale), -high - 1 + narrow, high) * scale


def _repair(proto: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    out = folder / "repaired.onnx"
    order = RepairRequest(
        model=models.save(proto, folder), out=out, samples="", labels=None, recipe=recipes.load(None)
    )
    assert [left for left in repair_file(order).remaining if left.refused] == []
    return onnx.load(out)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("narrow", [0, 1])
@pytest.mark.parametrize("scale", [0.05, [[[[0.05]]]], np.linspace(0.01, 0.1, 4).reshape(4, 1, 1, 1)])
def test_a_quant_that_q_and_dq_can_say_is_computed_the_same(
    bits: int, narrow: int, scale: Any, tmp_path: Path
) -> None:
    proto = qonnx({}, {"bits": bits, "narrow": narrow, "scale": scale})
    fixed = _repair(proto, tmp_path)
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    weight = next(numpy_helper.to_array(one) for one in proto.graph.initializer if one.name == "w")
    plain = models.Sketch()
    stored = plain.constant("w", rounded(weight, np.asarray(scale), bits, narrow).astype(np.float32))
    plain.output(plain.node("Conv", [plain.input("x", [1, 3, 8, 8]), stored], "y"), [1, 4, 6, 6])
    wanted = models.run(plain.model(17), {"x": rounded(x, 0.02, 8, 0).astype(np.float32)}, optimize=False)
    found = models.run(fixed, {"x": x}, optimize=False)
    np.testing.assert_allclose(found["y"], wanted["y"], atol=1e-5)


@pytest.mark.parametrize(
    ("activation", "weight"),
    [
        ({"signed": 0}, {}),
        ({"narrow": 1}, {}),
        ({"bits": 4}, {}),
        ({"bits": 7.5}, {}),
        ({"zero": 3}, {}),
        ({"rounding_mode": "FLOOR"}, {}),
        ({}, {"bits": 9}),
        ({}, {"zero": 1}),
        ({}, {"scale": np.full((4, 3, 1, 1), 0.05)}),
        ({}, {"scale": np.zeros((4, 1, 1, 1))}),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_has_no_exact_form_is_refused_with_the_export_to_start_from(
    activation: dict[str, Any], weight: dict[str, Any], tmp_path: Path
) -> None:
    proto = qonnx(activation, weight)
    with pytest.raises(InputFileError, match="1 quantizer of QONNX cannot be written") as caught:
        _repair(proto, tmp_path)
    assert "export_onnx_qcdq" in caught.value.fix


def _extended(kind: Any) -> onnx.ModelProto:
    s = models.Sketch()
    given = [s.constant("s", np.float32(0.02)), s.constant("z", np.zeros((), kind))]

    def pair(tensor: str, name: str) -> str:
        q = s.node("ExtendedQuantizeLinear", [tensor, *given], f"{name}_q", domain=QUARK, axis=1)
        return s.node("ExtendedDequantizeLinear", [q, *given], f"{name}_d", domain=QUARK)

    factors = [pair(s.input("x", [2, 8]), "x"), pair(s.weight("w", 8, 4), "w")]
    s.output(s.node("MatMul", factors, "y"), [2, 4])
    return s.model(17, domains=[QUARK])


def test_extended_q_and_dq_of_eight_bits_are_those_of_onnx(tmp_path: Path) -> None:
    proto = _extended(np.int8)
    fixed = _repair(proto, tmp_path)
    x = np.random.default_rng(2).normal(size=(2, 8)).astype(np.float32)
    weight = next(numpy_helper.to_array(one) for one in proto.graph.initializer if one.name == "w")
    wanted = rounded(x, 0.02, 8, 0) @ rounded(weight, 0.02, 8, 0)
    np.testing.assert_allclose(models.run(fixed, {"x": x}, optimize=False)["y"], wanted, atol=1e-5)


def test_extended_q_and_dq_of_sixteen_bits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="4 quantizers of AMD Quark"):
        _repair(_extended(np.int16), tmp_path)


@pytest.mark.parametrize(
    ("op", "domain"),
    [
        ("Quant", QONNX),
        ("BipolarQuant", QONNX),
        ("Trunc", QONNX),
        ("ExtendedQuantizeLinear", QUARK),
        ("BFPQuantizeDequantize", QUARK),
        ("VitisQuantizeLinear", "com.vai.quantize"),
        ("FakeQuantize", "org.openvinotoolkit"),
        ("FakeQuantizeLearnablePerchannelAffine", "custom"),
        ("LearnablePerTensorAffine", "mqbench"),
        ("fake_quantize_per_tensor_affine", "org.pytorch.aten"),
        ("QuantizeBFP", "com.microsoft"),
    ],
)
def test_no_quantizer_is_taken_for_a_float_model(
    op: str, domain: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    s = models.Sketch()
    x = s.node(op, [s.input("x", [1, 8]), s.constant("s", np.float32(0.1))], "d", name="fq", domain=domain)
    s.output(s.node("MatMul", [x, s.weight("w", 8, 8)], "y", name="mm"), [1, 8])
    path = models.save(s.model(17, domains=[domain]), tmp_path)
    assert quantized_ops(load(path)) == (op,)
    (found,) = (one for one in lint(load(path)).findings if one.severity is Severity.ERROR)
    assert (found.code, found.node) == ("QDQ193", "fq")
    assert run(["lint", str(path)]) == 1
    assert run(["run", str(path), "--samples", "random:2", "--out", str(tmp_path / "run")]) == 5
    said = capsys.readouterr()
    assert "a float model" not in said.out
    assert op in said.err


def test_an_operator_of_ones_own_is_no_quantizer(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Trunc", [s.input("x", [1, 8])], "y", domain=""), [1, 8])
    node = helper.make_node("Swirl", ["y"], ["z"], domain="acme")
    s.nodes.append(node)
    assert quantized_ops(load(models.save(s.model(17, domains=["acme"]), tmp_path))) == ()
