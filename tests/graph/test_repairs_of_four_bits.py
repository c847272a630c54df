"""INT4 becomes INT8 where TensorRT has no use for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qdqtool.graph.qdq.find import find
from tests.graph.repairing import Sketch, apart, kinds, legal, repaired

SIGNED, UNSIGNED = TensorProto.INT4, TensorProto.UINT4


def four_bits(s: Sketch, name: str, values: Any, kind: int) -> str:
    flat = np.asarray(values).ravel().tolist()
    s.initializers.append(onnx.helper.make_tensor(name, kind, np.shape(values), flat))
    return name


def weights(s: Sketch, kind: int, scale: Any, zero: int, **attributes: Any) -> str:
    """A 16 x 8 matrix of 4-bit integers behind a DequantizeLinear."""
    low = 0 if kind == UNSIGNED else -8
    values = s.random.integers(low, low + 16, (16, 8))
    scale = np.asarray(scale, np.float32)
    names = [four_bits(s, "w", values, kind), s.constant("w_s", scale)]
    names.append(four_bits(s, "w_z", np.full(scale.shape, zero), kind))
    return s.node("DequantizeLinear", names, "w_d", name="w/DQ", **attributes)


PER_CHANNEL = np.linspace(0.01, 0.02, 8)


@pytest.mark.parametrize(
    ("kind", "scale", "zero", "attributes"),
    [
        pytest.param(SIGNED, 0.02, 0, {}, id="signed per tensor"),
        pytest.param(SIGNED, PER_CHANNEL, 0, {"axis": 1}, id="signed per channel"),
        pytest.param(UNSIGNED, 0.02, 8, {}, id="unsigned per tensor"),
        pytest.param(UNSIGNED, PER_CHANNEL, 3, {"axis": 1}, id="unsigned per channel"),
    ],
)
def test_four_bit_weights_beside_int8_become_int8_exactly(
    kind: int, scale: Any, zero: int, attributes: dict[str, int], tmp_path: Path
) -> None:
    s = Sketch()
    x = s.pair(s.input("x", [4, 16]), "x")
    s.output(s.node("MatMul", [x, weights(s, kind, scale, zero, **attributes)], "y", name="mm"))
    proto = s.model(opset=21)
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"four_bits": 1}
    assert changes[0].error == 0
    assert legal(fixed)
    assert apart(proto, fixed) == 0
    assert repaired(fixed.proto, tmp_path)[1] == ()


def test_block_scales_beside_int8_become_one_per_output_channel(tmp_path: Path) -> None:
    s = Sketch()
    x = s.pair(s.input("x", [4, 16]), "x")
    scale = np.linspace(0.01, 0.02, 16).reshape(2, 8)
    weight = weights(s, SIGNED, scale, 0, axis=0, block_size=8)
    s.output(s.node("MatMul", [x, weight], "y", name="mm"))
    proto = s.model(opset=21)
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"four_bits": 1}
    assert changes[0].error is not None
    assert 0 < changes[0].error < 0.01
    assert legal(fixed)
    pair = next(pair for pair in find(fixed) if pair.quantize is None)
    assert pair.axis == 1
    assert len(pair.scale) == 8
    assert apart(proto, fixed) < 0.01


@pytest.mark.parametrize("beside", ["floats", "int8"])
def test_a_last_block_may_be_shorter(beside: str, tmp_path: Path) -> None:
    s = Sketch()
    x = s.input("x", [4, 16])
    scale = np.linspace(0.01, 0.05, 16).reshape(2, 8)
    weight = weights(s, UNSIGNED, scale, 8, axis=0, block_size=12)
    s.output(s.node("MatMul", [s.pair(x, "x") if beside == "int8" else x, weight], "y", name="mm"))
    proto = s.model(opset=21)
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"four_bits": 1}
    assert apart(proto, fixed) <= (0.01 if beside == "int8" else 0)


def test_weights_that_multiply_floats_stay_int4(tmp_path: Path) -> None:
    s = Sketch()
    scale = np.linspace(0.01, 0.02, 16).reshape(2, 8)
    weight = weights(s, SIGNED, scale, 0, axis=0, block_size=8)
    s.output(s.node("MatMul", [s.input("x", [4, 16]), weight], "y", name="mm"))
    assert kinds(repaired(s.model(opset=21), tmp_path)[1]) == {}


@pytest.mark.parametrize(("zero", "exact"), [(8, True), (3, False)], ids=["zero point 8", "zero point 3"])
def test_unsigned_weights_that_multiply_floats_become_signed(zero: int, exact: bool, tmp_path: Path) -> None:
    s = Sketch()
    scale = np.linspace(0.01, 0.02, 16).reshape(2, 8)
    weight = weights(s, UNSIGNED, scale, zero, axis=0, block_size=8)
    s.output(s.node("MatMul", [s.input("x", [4, 16]), weight], "y", name="mm"))
    proto = s.model(opset=21)
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"four_bits": 1}
    assert (changes[0].error == 0) is exact
    assert [pair.dtype.value for pair in find(fixed)] == ["int4"]
    assert apart(proto, fixed) <= (0 if exact else 0.1)
    assert repaired(fixed.proto, tmp_path)[1] == ()


def test_four_bit_constants_beside_float_arithmetic_become_floats(tmp_path: Path) -> None:
    s = Sketch()
    x = s.input("x", [16, 8])
    s.output(s.node("Add", [x, weights(s, SIGNED, 0.02, 0)], "y", name="add"))
    proto = s.model(opset=21)
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"four_bits": 1, "bias": 1}
    assert apart(proto, fixed) == 0
