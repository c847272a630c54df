"""Reading Q/DQ gives back what was inserted, and copes with everybody's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.recipe import InsertOptions
from qdqtool.core.tensors import DType
from qdqtool.graph.qdq.find import find, quantized_ops
from qdqtool.graph.qdq.insert import insert
from tests import models
from tests.graph.placing import opened, placement_for


def test_a_float_model_has_no_pairs(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    assert find(model) == ()
    assert quantized_ops(model) == ()


@pytest.mark.parametrize("name", ["residual_cnn", "unet", "attention", "gemms", "matmuls"])
@given(data=st.data())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_insert_then_find_returns_the_same_placement_and_scales(
    name: str, tmp_path: Path, data: st.DataObject
) -> None:
    model = opened(models.ALL[name](), tmp_path)
    everything = placement_for(model).decisions
    chosen = data.draw(st.lists(st.sampled_from(everything), unique_by=lambda decision: decision.slot))
    magnitudes = st.floats(min_value=2.0**-17, max_value=2.0**17, width=32)
    ranges = {}
    for decision in chosen:
        shape = model.view.constant_shape(decision.tensor)
        assert decision.spec is not None
        axis = decision.spec.axis
        count = 1 if axis is None or shape is None else shape[axis]
        amax = data.draw(st.lists(magnitudes, min_size=count, max_size=count))
        ranges[decision.tensor] = TensorRange(tensor=decision.tensor, amax=tuple(amax), axis=axis)
    options = InsertOptions(weights=data.draw(st.sampled_from(["qdq", "int8"])))
    table = CalibrationTable(ranges=tuple(ranges.values()))
    pairs = find(insert(model, Placement(decisions=tuple(chosen), ties=()), table, options))
    found = {slot: (pair.kind, pair.axis, pair.scale) for pair in pairs for slot in pair.slots}
    assert found == {
        decision.slot: (
            decision.kind,
            decision.spec.axis if decision.spec else None,
            tuple(float(np.float32(scale)) for scale in ranges[decision.tensor].scales),
        )
        for decision in chosen
    }
    assert all(len(pair.slots) == 1 for pair in pairs)


def test_integers_behind_a_dequantize_alone_are_found(tmp_path: Path) -> None:
    s = models.Sketch()
    weight = s.constant("w8", np.ones((4, 4, 1, 1), np.int8))
    scale, zero = s.constant("s", np.full(4, 0.5, np.float32)), s.constant("z", np.zeros(4, np.int8))
    weight = s.node("DequantizeLinear", [weight, scale, zero], "w", name="dq", axis=-4)
    s.output(s.node("Conv", [s.input("x", [1, 4, 2, 2]), weight], "y", name="conv"))
    (pair,) = find(opened(s.model(), tmp_path))
    assert (pair.tensor, pair.quantize, pair.dequantize) == ("w8", None, "dq")
    assert (pair.kind, pair.dtype, pair.axis, pair.scale_shape) == (SlotKind.WEIGHT, DType.INT8, 0, (4,))


def test_one_quantize_with_two_dequantizes_is_two_pairs(tmp_path: Path) -> None:
    s = models.Sketch()
    scale, zero = s.constant("s", np.float32(0.5)), s.constant("z", np.uint8(128))
    q = s.node("QuantizeLinear", [s.input("x", [4]), scale, zero], "q")
    left = s.node("DequantizeLinear", [q, scale, zero], "left")
    right = s.node("DequantizeLinear", [q, scale, zero], "right")
    s.output(s.node("Add", [left, right], "y", name="add"))
    pairs = find(opened(s.model(), tmp_path))
    assert [(pair.quantize, pair.dequantize) for pair in pairs] == [("q", "left"), ("q", "right")]
    assert {(pair.dtype, pair.zero_point) for pair in pairs} == {(DType.UINT8, (128,))}


def test_a_dangling_quantize_and_a_returned_dequantize_are_found(tmp_path: Path) -> None:
    s = models.Sketch()
    scale = s.constant("s", np.float32(0.5))
    x = s.input("x", [4])
    s.output(s.node("QuantizeLinear", [x, scale], "q"), [4], TensorProto.UINT8)
    pair_q = s.node("QuantizeLinear", [x, scale], "q2")
    s.output(s.node("DequantizeLinear", [pair_q, scale], "dq"))
    alone, returned = find(opened(s.model(), tmp_path))
    assert (alone.dequantize, alone.slots, alone.returned, alone.dtype) == (None, (), True, DType.UINT8)
    assert (returned.dequantize, returned.returned, returned.zero_point) == ("dq", True, (0,))


def test_a_computed_scale_is_unknown_not_guessed(tmp_path: Path) -> None:
    s = models.Sketch()
    scale = s.node("Abs", [s.input("a", [])], "s")
    q = s.node("QuantizeLinear", [s.input("x", [4]), scale, s.constant("z", np.int8(0))], "q")
    s.output(s.node("DequantizeLinear", [q, scale], "y"))
    (pair,) = find(opened(s.model(), tmp_path))
    assert (pair.scale, pair.scale_shape) == ((), None)


def test_pairs_of_the_microsoft_domain_are_found(tmp_path: Path) -> None:
    s = models.Sketch()
    scale, zero = s.constant("s", np.float32(0.5)), s.constant("z", np.int8(0))
    q = s.node("QuantizeLinear", [s.input("x", [4]), scale, zero], "q", domain="com.microsoft")
    s.output(s.node("DequantizeLinear", [q, scale, zero], "y", domain="com.microsoft"))
    (pair,) = find(opened(s.model(domains=["com.microsoft"]), tmp_path))
    assert (pair.domain, pair.quantize, pair.dequantize) == ("com.microsoft", "q", "y")


def test_integer_operators_count_as_quantized(tmp_path: Path) -> None:
    s = models.Sketch()
    a = s.input("a", [2, 2], TensorProto.INT8)
    s.output(s.node("MatMulInteger", [a, a], "y"), [2, 2], TensorProto.INT32)
    assert quantized_ops(opened(s.model(), tmp_path)) == ("MatMulInteger",)
