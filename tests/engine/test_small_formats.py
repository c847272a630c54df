"""FP8, FP4 and INT4 engines: types, roles, bytes and MACs, with block scales and dynamic shapes, in every form."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtool.core.engine import EngineLayer, Role
from qdqtool.core.explore import CostModel
from qdqtool.core.tensors import DType
from qdqtool.engine import read, read_text
from qdqtool.engine.costs import cost
from qdqtool.engine.view import view
from tests.engine.records import dump
from tests.engine.records import record as listed

LINEAR = "(Linear) Row major linear format"


def record(
    name: str, kind: str, inputs: tuple[str, ...], constants: tuple[str, ...], outputs: tuple[str, ...]
) -> str:
    return listed(name, kind, inputs=inputs, constants=constants, outputs=outputs)


def tensor(name: str, dtype: str, dims: str, form: str = LINEAR) -> str:
    return f"{{ Name: {name}, Dimensions: [{dims}], Strides: [1], Datatype: {dtype}, Format: {form} }}"


QUANTIZE = record(
    "__myl_Dyna_myl0_1",
    "kgen",
    (tensor("x", "Half", "8,64,256"),),
    (),
    (tensor("q", "FP4E2M1", "8,64,256"), tensor("s", "FP8", "8,64,16")),
)
GEMM = record(
    "mm_myl0_4",
    "gemm",
    (tensor("q2", "FP4E2M1", "512,256"), tensor("s2", "FP8", "4,4,32,4,4", "Arbitrary")),
    (
        tensor("w", "FP4E2M1", "256,256", "(Transposed)"),
        tensor("g", "Float", "1"),
        tensor("ws", "FP8", "4,4,2,4,32", "Arbitrary"),
    ),
    (tensor("y", "Half", "512,256"),),
)
TWO = record(
    "qk_myl0_4",
    "gemm",
    (
        tensor("a", "FP4E2M1", "128,64"),
        tensor("as", "FP8", "1,1,32,4,4", "Arbitrary"),
        tensor("b", "FP4E2M1", "64,128"),
        tensor("bs", "FP8", "1,1,32,4,4", "Arbitrary"),
    ),
    (),
    (tensor("y", "Half", "128,128"),),
)
MX = record(
    "__myl_Dyna_myl0_1",
    "kgen",
    (tensor("x", "Half", "8,64,256"),),
    (),
    (tensor("q", "FP8", "8,64,256"), tensor("s", "FP8UE8M0", "8,64,8")),
)
INT4 = record(
    "__myl_ReplCastMulCastFc_myl0_2",
    "runtime_fusion",
    (tensor("x", "Half", "512,256"),),
    (tensor("w", "Int4", "256,512", "(Transposed)"), tensor("s", "Half", "8,512")),
    (tensor("y", "Half", "512,512"),),
)


def only(text: str) -> EngineLayer:
    (layer,) = read_text(dump(text), where="test").layers
    return layer


def test_a_kernel_that_quantizes_to_fp4_and_its_block_scales_only_converts():
    layer = only(QUANTIZE)
    assert (layer.role, layer.precision) == (Role.QDQ, DType.FLOAT4)
    assert cost(layer, CostModel.EXACT).bytes == 8 * 64 * (256 * 2 + 256 // 2 + 16)


def test_an_mxfp8_quantizer_writes_fp8_beside_powers_of_two():
    layer = only(MX)
    assert (layer.role, layer.precision) == (Role.QDQ, DType.FLOAT8)
    assert [entry.dtype for entry in layer.outputs] == [DType.FLOAT8, DType.FLOAT8_E8M0]
    assert cost(layer, CostModel.EXACT).output_bytes == 8 * 64 * (256 + 8)


def test_an_fp4_product_is_fp4_whatever_its_scales_are():
    layer = only(GEMM)
    found = cost(layer, CostModel.EXACT)
    assert (layer.role, layer.precision) == (Role.COMPUTE, DType.FLOAT4)
    assert found.macs == 512 * 256 * 256
    assert found.weight_bytes == 256 * 256 // 2 + 4 + 4 * 4 * 2 * 4 * 32


def test_a_product_of_two_fp4_activations_pairs_the_factors_and_not_a_factor_with_a_scale():
    layer = only(TWO)
    assert layer.precision is DType.FLOAT4
    assert cost(layer, CostModel.EXACT).macs == 128 * 128 * 64


def test_an_int4_weight_that_is_dequantized_in_the_kernel_leaves_the_arithmetic_float():
    layer = only(INT4)
    found = cost(layer, CostModel.EXACT)
    assert layer.precision is DType.FLOAT16
    assert (found.macs, found.weight_bytes) == (512 * 512 * 256, 256 * 512 // 2 + 8 * 512 * 2)


@pytest.mark.parametrize(
    ("word", "dtype", "bits"),
    [
        ("FP8", DType.FLOAT8, 8),
        ("FP8E4M3", DType.FLOAT8, 8),
        ("FP8E5M2", DType.FLOAT8_E5M2, 8),
        ("FP8UE8M0", DType.FLOAT8_E8M0, 8),
        ("FP4E2M1", DType.FLOAT4, 4),
        ("Int4", DType.INT4, 4),
    ],
)
def test_every_form_knows_the_small_types(word: str, dtype: DType, bits: int):
    record_text = record("a", "gemm", (tensor("x", word, "3,5"),), (), (tensor("y", word, "3,5"),))
    line = f"[V] Engine Layer Information:\nLayer(CaskGemm): a, Tactic: 0x1, x ({word}[3,5]) -> y ({word}[3,5])\n"
    entry = {"Name": "x", "Dimensions": [3, 5], "Format/Datatype": f"Row major linear {word} format"}
    split = {"Name": "x", "Dimensions": [3, 5], "Datatype": word, "Format": LINEAR}
    inspected = [
        json.dumps({"Layers": [{"Name": "a", "LayerType": "gemm", "Inputs": [one], "Outputs": [one]}]})
        for one in (entry, split)
    ]
    for text in (dump(record_text), line, *inspected):
        (layer,) = read_text(text, where="test").layers
        assert [found.dtype for found in (*layer.inputs, *layer.outputs)] == [dtype, dtype], text
        assert layer.inputs[0].bytes == (15 * bits + 7) // 8


BINDING = (
    " Name: {name}, IOMode: Input, DataType: Float, Dimensions: [-1,64,8,8], Location: Device, IsShapeInferenceIO: false, "
    "ProfileInfo: [ {{ MinShape: [1,64,8,8], OptShape: [4,64,8,8], MaxShape: [9,64,8,8], Format: Row major linear FP32 "
    "format (kLINEAR) }}, {{ MinShape: [2,64,8,8], OptShape: [7,64,8,8], MaxShape: [9,64,8,8] }}]\n"
)


def dynamic(*records: str) -> str:
    return dump(*records).replace("I/O Tensors:\n", "I/O Tensors:\n" + BINDING.format(name="x"))


CONV = record(
    "conv_myl0_2",
    "correlation",
    (tensor("x", "Int8", "-1,64,8,8"),),
    (tensor("w", "Int8", "32,64,3,3"),),
    (tensor("c", "Int8", "-1,32,8,8"),),
)
GATHER = record(
    "__myl_Gath_myl0_3", "kgen", (tensor("c", "Int8", "-1,32,8,8"),), (), (tensor("g", "Int8", "-1,32"),)
)
BEHIND = record(
    "conv2_myl0_4",
    "correlation",
    (tensor("g", "Int8", "-1,32"),),
    (tensor("w2", "Int8", "32,32,3,3"),),
    (tensor("e", "Int8", "-1,32"),),
)


def test_dynamic_layers_cost_what_they_cost_at_the_optimum_of_the_first_profile():
    seen = view(read_text(dynamic(CONV), where="test"))
    assert seen.layers[0].bytes == 4 * 64 * 64 + 32 * 64 * 9 + 4 * 32 * 64
    assert seen.layers[0].macs == 4 * 64 * 32 * 64 * 9
    assert seen.layers[0].inputs[0].shape == (-1, 64, 8, 8)
    assert any("4x64x8x8" in note for note in seen.notes)


def test_behind_a_layer_that_may_change_the_size_costs_stay_unknown():
    seen = view(read_text(dynamic(CONV, GATHER, BEHIND), where="test"))
    assert seen.layers[0].macs
    assert [layer.bytes for layer in seen.layers[1:]] == [None, None]


def test_without_an_optimum_dynamic_costs_stay_unknown():
    seen = view(read_text(dump(CONV), where="test"))
    assert (seen.layers[0].bytes, seen.layers[0].macs) == (None, None)
    assert seen.notes == ()


def block(batch: int | str) -> onnx.ModelProto:
    """Quantized Conv and Relu, a reshape, and a product with a weight of four bits."""
    draw = np.random.default_rng(0)
    weight = numpy_helper.from_array(draw.normal(size=(32, 16, 3, 3)).astype(np.float32), "w")
    four = helper.make_tensor("w4", TensorProto.INT4, [512, 64], draw.integers(-8, 8, 512 * 64).tolist())
    scales = numpy_helper.from_array(np.full((16, 64), 0.01, np.float32), "s4")
    nodes, values = [], [weight, four, scales]
    for name, source in (("a", "x"), ("b", "w")):
        values += [
            numpy_helper.from_array(np.array(0.05, np.float32), f"{name}_s"),
            helper.make_tensor(f"{name}_z", TensorProto.INT8, [], [0]),
        ]
        nodes += [
            helper.make_node(
                "QuantizeLinear", [source, f"{name}_s", f"{name}_z"], [f"{name}_q"], f"{name}_Q"
            ),
            helper.make_node(
                "DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [name], f"{name}_DQ"
            ),
        ]
    values.append(numpy_helper.from_array(np.array([-1, 16, 512], np.int64), "shape"))
    nodes += [
        helper.make_node("Conv", ["a", "b"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("Reshape", ["r", "shape"], ["t"], "reshape"),
        helper.make_node("DequantizeLinear", ["w4", "s4"], ["wd"], "w_DQ", axis=0, block_size=32),
        helper.make_node("MatMul", ["t", "wd"], ["y"], "matmul"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 16, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 16, 64])],
        values,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.slow
@pytest.mark.rtx
def test_a_dynamic_engine_costs_at_its_optimum_what_the_static_one_costs(tmp_path):
    pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx")
    from qdqtool.backends.builders.rtx import PLUGIN
    from qdqtool.core.protocols import BuildRequest, InputProfile

    totals = []
    shapes = (InputProfile(name="x", low=(1, 16, 16, 16), opt=(4, 16, 16, 16), high=(8, 16, 16, 16)),)
    for batch, profiles in ((4, ()), ("N", shapes)):
        folder = tmp_path / str(batch)
        folder.mkdir()
        onnx.save(block(batch), folder / "m.onnx")
        request = BuildRequest(
            model=folder / "m.onnx", folder=folder, targets=("sm89",), profiles=profiles, timeout_s=120
        )
        result, _ = PLUGIN.build(request)
        seen = view(read(folder / (result.layers or "")))
        compute = [layer for layer in seen.layers if layer.role is Role.COMPUTE]
        totals.append(
            [(layer.precision, layer.macs, layer.weight_bytes, layer.input_bytes) for layer in compute]
        )
    static, at_optimum = totals
    assert len(static) == 2
    assert at_optimum == static
    assert all(value is not None for entry in at_optimum for value in entry)
