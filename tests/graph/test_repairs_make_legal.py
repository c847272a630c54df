"""Numbers that TensorRT refuses or misreads become numbers that it takes, with the error told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from ml_dtypes import bfloat16
from onnx import TensorProto

from qdqtool.core.tensors import DType
from qdqtool.errors import InputFileError
from qdqtool.graph.qdq.find import find
from qdqtool.placement.repair import remaining, repair
from tests.graph.placing import opened
from tests.graph.repairing import STEP, Sketch, apart, kinds, legal, repaired


@pytest.mark.parametrize(
    ("kind", "zero", "largest"),
    [
        (np.uint8, 128, 0.0),
        (np.uint8, 0, 0.05),
        (np.int8, -128, 0.05),
        (np.int8, 9, 0.05),
        (np.uint8, 200, 0.03),
    ],
    ids=["uint8 128 exactly", "uint8 0", "int8 -128", "int8 9", "uint8 100"],
)
def test_zero_points_of_activations_go(kind: Any, zero: int, largest: float, tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", 0.04, zero, kind), s.filters()))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"zero_point": 1}
    assert legal(fixed)
    assert apart(proto, fixed) <= largest
    assert changes[0].error == (0.0 if largest == 0 else None)


def test_a_zero_point_that_stood_for_a_relu_brings_the_relu_back_once(tmp_path: Path) -> None:
    s = Sketch()
    y = s.convolved(s.pair(s.image(), "x"), s.filters())
    left = s.convolved(s.pair(y, "a", zero=-128), s.filters("v"), name="left")
    right = s.convolved(s.pair(y, "b", zero=-128), s.filters("u"), name="right")
    s.output(s.node("Concat", [left, right], "z", axis=1))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert [node.op for node in fixed.view.nodes].count("Relu") == 1
    assert "Relu" in changes[0].what
    assert apart(proto, fixed) < 0.03


def test_a_relu_that_is_there_is_not_doubled(tmp_path: Path) -> None:
    s = Sketch()
    y = s.relu("relu", s.convolved(s.pair(s.image(), "x"), s.filters()))
    s.output(s.convolved(s.pair(y, "y", zero=-128), s.filters("v"), name="conv2"))
    fixed, _ = repaired(s.model(), tmp_path)
    assert [node.op for node in fixed.view.nodes].count("Relu") == 1


def test_a_missing_zero_point_is_written_out(tmp_path: Path) -> None:
    s = Sketch()
    scale, zero = s.constant("s", np.float32(STEP)), s.constant("z", np.int8(0))
    q = s.node("QuantizeLinear", [s.image(), scale, zero], "q")
    s.output(s.convolved(s.node("DequantizeLinear", [q, scale], "d"), s.filters()))
    fixed, changes = repaired(s.model(), tmp_path)
    assert kinds(changes) == {"zero_point": 1}
    assert all(len(node.inputs) == 3 for node in fixed.view.nodes if node.op.endswith("quantizeLinear"))


@pytest.mark.parametrize(
    ("kind", "zero", "exact"),
    [(np.uint8, 128, True), (np.int8, 5, False), (np.uint8, 100, False)],
    ids=["uint8 128", "int8 5", "uint8 100"],
)
def test_zero_points_of_weights_go(kind: Any, zero: int, exact: bool, tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x"), s.filters(kind=kind, zero=zero)))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"zero_point": 1}
    assert legal(fixed)
    assert changes[0].error is not None
    assert (changes[0].error == 0) is exact
    assert changes[0].error < 0.01
    assert apart(proto, fixed) <= (1e-6 if exact else 0.02)


def test_a_small_zero_point_of_weights_goes_exactly_where_the_range_allows(tmp_path: Path) -> None:
    s = Sketch()
    values = s.constant("w", s.random.integers(-60, 60, (4, 4, 3, 3)).astype(np.int8))
    weight = s.dequantize(values, "w", np.full(4, 0.01), 7, axis=0)
    s.output(s.convolved(s.pair(s.image(), "x"), weight))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert changes[0].error == 0
    assert apart(proto, fixed) < 1e-6


def test_float_weights_behind_an_unsigned_pair_become_int8(tmp_path: Path) -> None:
    s = Sketch()
    weight = s.pair(s.weight("w", 4, 4, 3, 3), "w", 0.01, 128, np.uint8)
    s.output(s.convolved(s.pair(s.image(), "x"), weight))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"zero_point": 1}
    assert changes[0].error == 0
    assert apart(proto, fixed) < 1e-6


def test_integer_biases_become_float(tmp_path: Path) -> None:
    s = Sketch()
    bias = s.dequantize(s.integers("b", 4, kind=np.int32), "b", np.full(4, 1e-10), 0, np.int32, axis=0)
    s.output(s.convolved(s.pair(s.image(), "x"), s.filters(), bias))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"bias": 1}
    assert fixed.view.info(fixed.view.by_name["conv"].inputs[2]).dtype is DType.FLOAT32
    assert apart(proto, fixed) < 1e-6


def test_weights_behind_a_transpose_and_a_reshape_come_to_the_node(tmp_path: Path) -> None:
    s = Sketch()
    weight = s.dequantize(s.integers("w", 2, 4, 4), "w", np.full(4, 0.01), 0, axis=2)
    weight = s.node("Transpose", [weight], "w_t", name="turn", perm=[2, 1, 0])
    weight = s.node("Reshape", [weight, s.constant("to", np.array([4, 8, 1, 1]))], "w_r", name="shape")
    x = s.input("x", [1, 8, 6, 6])
    s.output(s.node("Conv", [s.pair(x, "x"), weight], "y", name="conv"))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"weight_path": 1}
    assert changes[0].error == 0
    assert "Transpose" not in {node.op for node in fixed.view.nodes}
    assert find(fixed)[-1].axis == 0
    assert apart(proto, fixed) < 1e-6


def test_scales_along_the_wrong_axis_are_made_again(tmp_path: Path) -> None:
    s = Sketch()
    weight = s.dequantize(s.integers("w", 16, 8), "w", np.linspace(0.001, 0.01, 16), 0, axis=0)
    s.output(s.node("MatMul", [s.pair(s.input("x", [2, 16]), "x"), weight], "y", name="mm"))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"weight_axis": 1}
    assert find(fixed)[-1].axis == 1
    assert apart(proto, fixed) < 0.02


def test_a_quantized_number_becomes_a_float_number(tmp_path: Path) -> None:
    s = Sketch()
    half = s.dequantize(s.constant("h", np.int8(50)), "h", 0.01)
    y = s.convolved(s.pair(s.image(), "x"), s.filters())
    s.output(s.node("Mul", [y, half], "y", name="mul"))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"constant_scalar": 1}
    assert apart(proto, fixed) < 1e-6


@pytest.mark.parametrize("shape", [(1,), (4,)], ids=["rank one", "per channel"])
def test_scales_of_activations_become_one_number(shape: tuple[int, ...], tmp_path: Path) -> None:
    s = Sketch()
    steps = np.linspace(0.02, 0.03, shape[0])
    x = s.pair(s.image(), "x", steps, np.zeros(shape), axis=1)
    s.output(s.convolved(x, s.filters()))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"activation_channels" if len(shape) and shape[0] > 1 else "scale_rank": 1}
    assert find(fixed)[0].scale_shape == ()
    assert apart(proto, fixed) <= (0 if shape == (1,) else 0.03)


def test_negative_scales_become_positive(tmp_path: Path) -> None:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", -STEP), s.filters()))
    proto = s.model()
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"scale_value": 1}
    assert legal(fixed)
    assert apart(proto, fixed) < 1e-6


def _with_scale(step: float) -> onnx.ModelProto:
    s = Sketch()
    s.output(s.convolved(s.pair(s.image(), "x", step), s.filters()))
    return s.model()


@pytest.mark.parametrize("step", [0.0, float("inf"), float("nan")])
def test_pairs_without_a_usable_scale_go_and_leave_a_remainder(step: float, tmp_path: Path) -> None:
    fixed, changes = repaired(_with_scale(step), tmp_path)
    assert kinds(changes) == {"scale_value": 1}
    assert [left.subject for left in remaining(fixed)] == ["conv"]


def test_computed_scales_go_because_the_builder_crashes_on_them(tmp_path: Path) -> None:
    s = Sketch()
    x = s.image()
    scale = s.node("ReduceMax", [s.node("Abs", [x], "abs")], "scale", keepdims=0)
    zero = s.constant("z", np.int8(0))
    q = s.node("QuantizeLinear", [x, scale, zero], "q", name="q")
    s.output(s.convolved(s.node("DequantizeLinear", [q, scale, zero], "d", name="d"), s.filters()))
    fixed, changes = repaired(s.model(), tmp_path)
    assert kinds(changes) == {"scale_computed": 1}
    assert "ReduceMax" not in {node.op for node in fixed.view.nodes}


def test_scales_that_do_not_fit_their_axis_are_refused(tmp_path: Path) -> None:
    s = Sketch()
    weight = s.dequantize(s.integers("w", 4, 4, 3, 3), "w", np.full(3, 0.01), 1, axis=0)
    s.output(s.convolved(s.pair(s.image(), "x"), weight))
    with pytest.raises(InputFileError, match="'w/DQ' quantizes 'w' with 3 scales, which do not match axis 0"):
        repair(opened(s.model(), tmp_path))


def test_computed_zero_points_go_or_stay_where_the_model_returns_them(tmp_path: Path) -> None:
    for returned in (False, True):
        s = Sketch()
        x, zero = s.image(), s.input("zero", [], TensorProto.INT8)
        scale = s.constant("s", np.float32(STEP))
        q = s.node("QuantizeLinear", [x, scale, zero], "q", name="q")
        d = s.node("DequantizeLinear", [q, scale, zero], "d", name="d")
        s.output(s.convolved(d, s.filters()))
        if returned:
            s.output(d)
        fixed, changes = repaired(s.model(), tmp_path)
        assert "zero_point" in kinds(changes)
        assert [node.op for node in fixed.view.nodes].count("QuantizeLinear") == int(returned)


def test_constants_without_elements_are_passed_over(tmp_path: Path) -> None:
    s = Sketch()
    empty = s.dequantize(s.constant("e", np.zeros((1, 0, 6, 6), np.uint8)), "e", 0.1, 3, np.uint8)
    y = s.node("Concat", [s.image(), empty], "cat", axis=1)
    s.output(s.convolved(s.pair(y, "y"), s.filters()))
    assert kinds(repaired(s.model(), tmp_path)[1]) == {}


def test_new_scales_in_fp16_are_exact_and_not_zero(tmp_path: Path) -> None:
    s = Sketch()
    x = s.input("x", [1, 4, 6, 6], TensorProto.FLOAT16)
    scale, zero = s.constant("s", np.float16(0.02)), s.constant("z", np.int8(7))
    x = s.node("QuantizeLinear", [x, scale, zero], "q")
    x = s.node("DequantizeLinear", [x, scale, zero], "d")
    weight = s.constant("w", np.full((4, 4, 3, 3), 3e-5, np.float16))
    s.output(s.convolved(x, weight), None, TensorProto.FLOAT16)
    proto = s.model(opset=19)
    fixed, changes = repaired(proto, tmp_path)
    assert kinds(changes) == {"zero_point": 1, "half_quantized": 1}
    assert all(scale == float(np.float16(scale)) > 0 for pair in find(fixed) for scale in pair.scale)
    assert apart(proto, fixed) < 0.05


def test_a_bf16_model_keeps_its_types(tmp_path: Path) -> None:
    s = Sketch()

    def pair(x: str, name: str, zero: Any, step: float) -> str:
        names = [s.constant(f"{name}_s", np.asarray(step, bfloat16)), s.constant(f"{name}_z", zero)]
        x = s.node("QuantizeLinear", [x, *names], f"{name}_q")
        return s.node("DequantizeLinear", [x, *names], f"{name}_d")

    x = pair(s.input("x", [4, 16], TensorProto.BFLOAT16), "x", np.uint8(100), 0.02)
    weight = s.integers("w", 16, 8, kind=np.uint8)
    names = [weight, s.constant("w_s", np.asarray(0.01, bfloat16)), s.constant("w_z", np.uint8(90))]
    y = s.node("MatMul", [x, s.node("DequantizeLinear", names, "w_d")], "mm")
    bias = [s.integers("b", 8, kind=np.int32), s.constant("b_s", np.asarray(1e-9, bfloat16))]
    y = s.node("Softmax", [s.node("Add", [y, s.node("DequantizeLinear", bias, "b_d")], "sum")], "p", axis=-1)
    right = pair(s.input("v", [8, 4], TensorProto.BFLOAT16), "v", np.int8(0), 0.02)
    s.output(s.node("MatMul", [pair(y, "p", np.int8(0), 0.05), right], "y"), [4, 4], TensorProto.BFLOAT16)
    fixed, changes = repaired(s.model(opset=21), tmp_path)  # `repaired` checks all types
    assert {"bias", "probabilities", "zero_point"} <= set(kinds(changes))
    assert all(
        fixed.view.info(node.inputs[1]).dtype is DType.BFLOAT16
        for node in fixed.view.nodes
        if node.op == "DequantizeLinear"
    )


def _read_in_a_body(s: Sketch, tensor: str, shape: list[int]) -> str:
    bodies = {
        branch: onnx.helper.make_graph(
            [onnx.helper.make_node(op, [tensor], [f"{op}_y"], name=op)],
            op,
            [],
            [onnx.helper.make_tensor_value_info(f"{op}_y", TensorProto.FLOAT, shape)],
        )
        for branch, op in (("then_branch", "Exp"), ("else_branch", "Neg"))
    }
    return s.output(s.node("If", [s.input("c", [], TensorProto.BOOL)], "body", **bodies))


@pytest.mark.parametrize(("zero", "kind"), [(0, np.int8), (0, np.uint8), (9, np.int8)])
@pytest.mark.parametrize("convolved", [False, True])
def test_a_pair_that_a_body_reads_stays(zero: int, kind: Any, convolved: bool, tmp_path: Path) -> None:
    s = Sketch()
    x = s.pair(s.image(), "x", zero=zero, kind=kind)
    if convolved:
        s.output(s.convolved(x, s.filters()))
    _read_in_a_body(s, x, [1, 4, 6, 6])
    proto = s.model()
    fixed, _ = repaired(proto, tmp_path)
    assert "x_d" in {fixed.view.by_name[pair.dequantize or ""].outputs[0] for pair in find(fixed)}
    assert apart(proto, fixed) < 0.05


def test_pairs_around_a_concat_get_one_scale_also_if_a_body_reads_one(tmp_path: Path) -> None:
    s = Sketch()
    left, right = s.pair(s.image(), "a", 0.01), s.pair(s.input("b", [1, 4, 6, 6]), "b", 0.04)
    joined = s.pair(s.node("Concat", [left, right], "cat", axis=1), "out", 0.02)
    _read_in_a_body(s, joined, [1, 8, 6, 6])
    fixed, changes = repaired(s.model(), tmp_path)
    assert kinds(changes) == {"concat": 1}
    assert {pair.scale for pair in find(fixed)} == {(float(np.float32(0.04)),)}


def test_weights_that_a_body_reads_too_are_stored_again_once(tmp_path: Path) -> None:
    s = Sketch()
    weight = s.filters(kind=np.uint8, zero=100)
    s.output(s.convolved(s.pair(s.image(), "x"), weight))
    _read_in_a_body(s, weight, [4, 4, 3, 3])
    assert kinds(repaired(s.model(), tmp_path)[1])["zero_point"] == 1
