"""Inserted Q/DQ has the form that TensorRT accepts and fuses, in FP32 and in FP16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Placement, QuantSpec
from qdqtool.core.recipe import InsertOptions, PrepareOptions
from qdqtool.core.tensors import FP8, DType
from qdqtool.errors import InputFileError, UsageError
from qdqtool.graph.onnx_io.save import serialize
from qdqtool.graph.preparation.prepare import prepare
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.insert import insert
from qdqtool.graph.view import Model
from tests import models
from tests.graph.placing import decision, opened, placement_for, table_for, weight_range

FP32 = InsertOptions()
EMPTY = Placement(decisions=(), ties=())
EVERY_FORM = [
    pytest.param(InsertOptions(types=types, weights=weights), id=f"{types} {weights}")
    for types in ("fp32", "fp16")
    for weights in ("qdq", "int8")
]


def _quantized(proto: onnx.ModelProto, folder: Path, options: InsertOptions = FP32) -> tuple[Model, Model]:
    """The float model and the same with Q/DQ everywhere."""
    model = prepare(opened(proto, folder), PrepareOptions())
    placement = placement_for(model)
    return model, insert(model, placement, table_for(model, placement, models.feeds(proto)), options)


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    a, b = first.astype(np.float64).ravel(), second.astype(np.float64).ravel()
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_an_empty_placement_changes_nothing(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    assert insert(model, EMPTY, CalibrationTable(ranges=()), FP32).proto == model.proto


@pytest.mark.parametrize("options", EVERY_FORM)
@pytest.mark.parametrize("name", models.ALL)
def test_a_quantized_model_computes_nearly_the_same(
    name: str, options: InsertOptions, tmp_path: Path
) -> None:
    proto = models.ALL[name]()
    feeds = models.feeds(proto)
    _, quantized = _quantized(proto, tmp_path, options)
    onnx.checker.check_model(quantized.proto, full_check=True)
    mine = models.run(quantized.proto, feeds, optimize=False)
    for output, value in models.run(proto, feeds).items():
        assert mine[output].dtype == np.float32
        assert _cosine(mine[output], value) > 0.999


def test_activations_have_scalar_scales_and_weights_one_per_channel(tmp_path: Path) -> None:
    _, quantized = _quantized(models.conv_chain(), tmp_path)
    view = quantized.view
    shapes = {pair.tensor: pair.scale_shape for pair in find(quantized)}
    assert shapes == {"x": (), "conv1_w": (8,), "relu1_y": (), "conv2_w": (16,)}
    for pair in find(quantized):
        assert pair.dtype is DType.INT8
        assert set(pair.zero_point) == {0}
        assert pair.axis == (0 if pair.tensor.endswith("_w") else None)
        assert pair.quantize is not None
        assert len(view.by_name[pair.quantize].inputs) == 3


def test_names_say_tensor_node_and_input(tmp_path: Path) -> None:
    _, quantized = _quantized(models.conv_chain(), tmp_path)
    assert [node.name for node in quantized.view.nodes][:5] == [
        "x_conv1_0_QuantizeLinear",
        "x_conv1_0_DequantizeLinear",
        "conv1_w_conv1_1_QuantizeLinear",
        "conv1_w_conv1_1_DequantizeLinear",
        "conv1",
    ]


def test_every_consumer_has_a_pair_of_its_own(tmp_path: Path) -> None:
    _, quantized = _quantized(models.concat_cnn(), tmp_path)
    pairs = [pair for pair in find(quantized) if pair.tensor == "squeeze_relu_y"]
    assert [str(pair.slots[0]) for pair in pairs] == ["left[0]", "right[0]"]
    assert len({pair.scale for pair in pairs}) == 1


def test_one_tensor_on_both_inputs_gets_two_pairs(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [4, 4])
    s.output(s.node("MatMul", [x, x], "y", name="square"))
    _, quantized = _quantized(s.model(), tmp_path)
    assert [str(pair.slots) for pair in find(quantized)] == [
        "(Slot(node='square', index=0),)",
        "(Slot(node='square', index=1),)",
    ]


def test_other_consumers_and_outputs_keep_the_float_tensor(tmp_path: Path) -> None:
    model = opened(models.residual_cnn(), tmp_path)
    placement = Placement(decisions=(decision("conv1", 0, "stem_relu_y"),), ties=())
    quantized = insert(model, placement, table_for(model, placement, models.feeds(model.proto)), FP32)
    assert "stem_relu_y" in quantized.view.by_name["add1"].inputs


def test_biases_stay_float(tmp_path: Path) -> None:
    _, quantized = _quantized(models.conv_chain(), tmp_path)
    assert quantized.view.by_name["conv1"].inputs[2] == "conv1_b"
    assert quantized.view.info("conv1_b").dtype is DType.FLOAT32


def test_integer_weights_are_what_quantizelinear_would_make(tmp_path: Path) -> None:
    model, quantized = _quantized(models.conv_chain(), tmp_path, InsertOptions(weights="int8"))
    _, written_out = _quantized(models.conv_chain(), tmp_path)
    graph = onnx.ModelProto()
    graph.CopyFrom(written_out.proto)
    del graph.graph.output[:]
    made = written_out.view.by_name["conv1_w_conv1_1_QuantizeLinear"].outputs[0]
    graph.graph.output.append(helper.make_tensor_value_info(made, TensorProto.INT8, None))
    expected = models.run(graph, models.feeds(model.proto), optimize=False)[made]
    np.testing.assert_array_equal(quantized.view.constant("conv1_w"), expected)


def test_integer_weights_make_the_file_about_four_times_smaller(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.conv("conv", s.input("x", [1, 128, 8, 8]), (128, 128)))
    _, written_out = _quantized(s.model(), tmp_path)
    _, stored = _quantized(s.model(), tmp_path, InsertOptions(weights="int8"))
    assert 3.8 < len(serialize(written_out)) / len(serialize(stored)) < 4.0
    assert [pair.quantize for pair in find(stored)][1] is None


def test_a_weight_that_others_read_as_float_stays_beside_its_integers(tmp_path: Path) -> None:
    s = models.Sketch()
    x, weight = s.input("x", [4, 4]), s.weight("w", 4, 4)
    y = s.node("MatMul", [x, weight], "mm", name="mm")
    s.output(s.node("Add", [y, weight], "y", name="add"))
    _, quantized = _quantized(s.model(), tmp_path, InsertOptions(weights="int8"))
    assert quantized.view.by_name["add"].inputs[1] == "w"
    assert quantized.view.info("w").dtype is DType.FLOAT32
    assert quantized.view.info("w_int8").dtype is DType.INT8


# FP16


def test_fp16_models_need_and_get_opset_19(tmp_path: Path) -> None:
    _, quantized = _quantized(models.conv_chain(), tmp_path, InsertOptions(types="fp16"))
    assert quantized.view.opset == 19
    assert "opset raised from 17 to 19" in " ".join(quantized.notes)


@pytest.mark.parametrize(
    "keep_io", [True, False], ids=["inputs and outputs kept", "inputs and outputs halved"]
)
def test_fp16_models_hold_nothing_wide_but_what_was_asked_for(keep_io: bool, tmp_path: Path) -> None:
    options = InsertOptions(types="fp16", keep_io=keep_io)
    _, quantized = _quantized(models.attention(), tmp_path, options)
    view = quantized.view
    wide = {
        name
        for node in view.nodes
        for name in (*node.inputs, *node.outputs)
        if view.info(name).dtype is DType.FLOAT32
    }
    assert wide == ({"x", "y"} if keep_io else set())
    assert [node.op for node in view.nodes].count("Cast") == (2 if keep_io else 0)


def test_no_cast_lands_between_dequantize_and_its_consumer(tmp_path: Path) -> None:
    for name in ("attention", "residual_cnn", "silu_cnn", "branching"):
        _, quantized = _quantized(models.ALL[name](), tmp_path, InsertOptions(types="fp16"))
        for pair in find(quantized):
            assert all(quantized.view.by_name[slot.node].op != "Cast" for slot in pair.slots)


def test_resize_scales_and_control_flow_stay_fp32(tmp_path: Path) -> None:
    options = InsertOptions(types="fp16")
    _, quantized = _quantized(models.silu_cnn(), tmp_path, options)
    assert quantized.view.info("factors").dtype is DType.FLOAT32
    proto = models.branching()
    _, quantized = _quantized(proto, tmp_path, options)
    assert quantized.view.info("conv_y").dtype is DType.FLOAT32
    assert quantized.view.info("y").dtype is DType.FLOAT32


def test_operators_that_choose_their_type_choose_fp16(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [2, 2])
    shape = s.constant("shape", np.array([2, 2]))
    fill = numpy_helper.from_array(np.array([1e6], np.float32))
    parts = [
        s.node("ConstantOfShape", [shape], "filled", value=fill),
        s.node("ConstantOfShape", [shape], "zeros"),
        s.node("Cast", [s.constant("ints", np.array([[1, 2], [3, 4]]))], "cast", to=TensorProto.FLOAT),
        s.node("RandomUniform", [], "noise", shape=[2, 2]),
    ]
    for part in parts:
        x = s.node("Add", [x, part], f"{part}_sum")
    s.output(x, [2, 2])
    model = opened(s.model(), tmp_path)
    quantized = insert(model, EMPTY, CalibrationTable(ranges=()), InsertOptions(types="fp16"))
    onnx.checker.check_model(quantized.proto, full_check=True)
    assert {str(quantized.view.info(part).dtype) for part in parts} == {"fp16"}
    filled = next(node for node in quantized.proto.graph.node if node.output[0] == "filled")
    assert numpy_helper.to_array(filled.attribute[0].t) == np.float16(65504)


def test_constants_beyond_fp16_are_clipped_with_a_note(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.node("Add", [s.input("x", [2]), s.constant("mask", np.array([-1e9, 3.0], np.float32))], "a")
    s.output(s.node("Div", [x, s.constant("epsilon", np.array([1e-12, -np.inf], np.float32))], "y"))
    model = opened(s.model(), tmp_path)
    quantized = insert(model, EMPTY, CalibrationTable(ranges=()), InsertOptions(types="fp16"))
    assert "1 constant exceeds FP16 and was clipped to 65504: 'mask'" in quantized.notes
    np.testing.assert_array_equal(quantized.view.constant("mask"), np.array([-65504, 3], np.float16))
    epsilon = quantized.view.constant("epsilon")
    assert epsilon is not None
    assert epsilon[0] > 0
    assert epsilon[1] == -np.inf


@pytest.mark.parametrize("amax", [1e-30, 1e-6, 0.00123, 0.3, 7.77, 1e5, 1e38])
def test_fp16_scales_are_exact_in_fp16_and_never_below_the_wish(amax: float, tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.conv("conv", s.input("x", [1, 4, 4, 4]), (4, 4)))
    model = opened(s.model(), tmp_path)
    placement = Placement(decisions=(decision("conv", 0, "x"),), ties=())
    table = CalibrationTable(ranges=(TensorRange(tensor="x", amax=(amax,)),))
    (pair,) = find(insert(model, placement, table, InsertOptions(types="fp16")))
    assert 0 < pair.scale[0] == float(np.float16(pair.scale[0])) < np.inf
    assert pair.scale[0] >= min(amax / 127, 65504) * (1 - 1e-6)


def test_the_smallest_range_still_gives_a_normal_scale(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    placement = Placement(decisions=(decision("conv1", 0, "x"),), ties=())
    table = CalibrationTable(ranges=(TensorRange(tensor="x", amax=(1e-44,)),))
    (pair,) = find(insert(model, placement, table, FP32))
    assert pair.scale[0] >= float(np.finfo(np.float32).tiny)


def test_a_model_in_fp16_already_gets_fp16_scales(tmp_path: Path) -> None:
    s = models.Sketch()
    x = s.input("x", [1, 4, 4, 4], TensorProto.FLOAT16)
    weight = s.constant("w", s.random.standard_normal((4, 4, 1, 1)).astype(np.float16))
    s.output(s.node("Conv", [x, weight], "y", name="conv"), None, TensorProto.FLOAT16)
    model = opened(s.model(), tmp_path)
    placement = placement_for(model)
    table = CalibrationTable(ranges=(weight_range(model, "w", 0), TensorRange(tensor="x", amax=(3.0,))))
    quantized = insert(model, placement, table, FP32)
    onnx.checker.check_model(quantized.proto, full_check=True)
    assert quantized.view.info("x_scale").dtype is DType.FLOAT16


# what is refused


def test_a_model_with_qdq_is_refused_with_two_ways_out(tmp_path: Path) -> None:
    model, quantized = _quantized(models.conv_chain(), tmp_path)
    placement = placement_for(model)
    with pytest.raises(UsageError, match="DequantizeLinear, QuantizeLinear") as caught:
        insert(quantized, placement, table_for(model, placement, models.feeds(model.proto)), FP32)
    assert "qdqtool repair" in caught.value.fix


@pytest.mark.parametrize(
    ("slot", "words"),
    [
        (decision("nobody", 0, "x"), "does not read 'x'"),
        (decision("conv1", 9, "x"), "does not read 'x'"),
        (decision("conv2", 0, "x"), "does not read 'x'"),
        (decision("conv1", 0, "x", axis=1), "is along axis None"),
        (decision("conv1", 1, "conv1_w", axis=None, weight=True), "is along axis 0"),
        (decision("relu2", 0, "conv2_y"), "no range for tensor 'conv2_y'"),
    ],
    ids=[
        "unknown node",
        "unknown input",
        "another tensor",
        "activation per channel",
        "weight per tensor",
        "no range",
    ],
)
def test_a_placement_of_another_model_is_refused(slot: object, words: str, tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    table = table_for(model, placement_for(model), models.feeds(model.proto))
    with pytest.raises(InputFileError, match=words):
        insert(model, Placement(decisions=(slot,), ties=()), table, FP32)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "amax", [0.0, -1.0, float("nan"), float("inf")], ids=["zero", "negative", "nan", "infinite"]
)
def test_a_range_that_is_no_positive_number_is_refused(amax: float, tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    table = CalibrationTable(ranges=(TensorRange(tensor="x", amax=(amax,)),))
    with pytest.raises(InputFileError, match="not a positive number"):
        insert(model, Placement(decisions=(decision("conv1", 0, "x"),), ties=()), table, FP32)


def test_a_range_with_the_wrong_number_of_channels_is_refused(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    wrong = replace(weight_range(model, "conv1_w", 0), amax=(1.0, 2.0))
    placement = Placement(decisions=(decision("conv1", 1, "conv1_w", 0, weight=True),), ties=())
    with pytest.raises(InputFileError, match="has 2 values, which do not match axis 0"):
        insert(model, placement, CalibrationTable(ranges=(wrong,)), FP32)


def test_a_scalar_constant_is_refused_because_tensorrt_refuses_it(tmp_path: Path) -> None:
    s = models.Sketch()
    s.output(s.node("Mul", [s.input("x", [2]), s.constant("two", np.float32(2))], "y", name="mul"))
    model = opened(s.model(), tmp_path)
    placement = Placement(decisions=(decision("mul", 1, "two", weight=True),), ties=())
    table = CalibrationTable(ranges=(TensorRange(tensor="two", amax=(2.0,)),))
    with pytest.raises(InputFileError, match="scalar constant"):
        insert(model, placement, table, FP32)


def test_an_eight_bit_float_is_written_with_its_own_largest_number(tmp_path: Path) -> None:
    model = opened(models.conv_chain(), tmp_path)
    slot = replace(decision("conv1", 0, "x"), spec=QuantSpec(format=FP8))
    table = CalibrationTable(ranges=(TensorRange(tensor="x", amax=(896.0,)),))
    written = insert(model, Placement(decisions=(slot,), ties=()), table, FP32)
    assert [(found.dtype, found.scale) for found in find(written)] == [(DType.FLOAT8, (2.0,))]
    assert written.view.opset == 19
    assert "opset raised from 17 to 19, the first that holds fp8" in written.notes
