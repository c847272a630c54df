"""What lint claims about TensorRT for RTX, checked by building the small graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
import pytest

from qdqtool.core.tensors import DType
from qdqtool.graph.onnx_io.load import load
from qdqtool.matching.rule import rulebook
from qdqtool.placement.lint import codes, lint
from qdqtool.prediction.predict import predict
from tests import models
from tests.placement.building import Built, build
from tests.placement.qdq import GRAPHS

pytest.importorskip("tensorrt_rtx", reason="needs the extra rtx")
pytestmark = pytest.mark.rtx


@cache
def built(name: str) -> Built:
    return build(GRAPHS[name]())


def _word(dtype: DType) -> str:
    return "float" if dtype.is_float else str(dtype)


Claim = Callable[[Built], bool]


def refused(words: str) -> Claim:
    return lambda result: words in result.error


def int8(*nodes: str) -> Claim:
    return lambda result: not result.error and {(node, "int8") for node in nodes} <= set(result.precision)


def floats(*nodes: str) -> Claim:
    return lambda result: not result.error and {(node, "float") for node in nodes} <= set(result.precision)


def more_kernels_than(other: str) -> Claim:
    return lambda result: len(result.kernels) > len(built(other).kernels)


def more_bytes_than(other: str) -> Claim:
    return lambda result: result.bytes > built(other).bytes


def as_many_kernels_as(other: str) -> Claim:
    return lambda result: len(result.kernels) == len(built(other).kernels)


def more_roundings_than(other: str) -> Claim:
    return lambda result: result.roundings > built(other).roundings


def as_many_bytes_as(other: str) -> Claim:
    return lambda result: result.bytes == built(other).bytes


def fewer_bytes_than(other: str) -> Claim:
    return lambda result: result.bytes < built(other).bytes


def correlation_writes(dtype: DType) -> Claim:
    return lambda result: (
        [t.dtype for k in result.kernels if k.kind == "correlation" for t in k.outputs] == [dtype]
    )


def writes(*types: DType) -> Claim:
    """One kernel writes exactly these types."""
    return lambda result: any(sorted(t.dtype for t in k.outputs) == sorted(types) for k in result.kernels)


def kernel(words: str) -> Claim:
    return lambda result: any(words in layer.name or words in layer.kind for layer in result.kernels)


def no_kernel(words: str) -> Claim:
    return lambda result: not kernel(words)(result)


CLEAN: set[str] = set()
SHIFT = refused("shiftIsAllZeros")
POSITIVE = refused("must all be positive")

CASES: dict[str, tuple[set[str], tuple[Claim, ...]]] = {
    "chain_ok": (CLEAN, (int8("c1", "c2"),)),
    "logarithm_of_quantized": ({"logarithm"}, (int8("mm1", "mm2"),)),
    "logarithm_of_float": (CLEAN, (floats("mm1"), int8("mm2"))),
    "resize_refused": ({"refused"}, (refused("only supports half_pixel"),)),
    "weight_bare": ({"half_quantized"}, (floats("c1"), kernel("RounCastCastMul"))),
    "activation_bare": ({"half_quantized"}, (floats("c1"), kernel("CastMulCast"))),
    "weights_per_tensor": ({"per_tensor_weights"}, (int8("c1"),)),
    "weights_prequantized": (CLEAN, (int8("c1"),)),
    "activation_zero_point": ({"zero_point"}, (SHIFT,)),
    "weight_zero_point": ({"zero_point"}, (SHIFT,)),
    "activation_uint8_128": ({"zero_point"}, (SHIFT,)),
    "weight_uint8_128": ({"zero_point"}, (SHIFT,)),
    "activation_uint8_zero": ({"unsigned"}, (int8("c1"),)),
    "activation_uint8_cast": ({"unsigned"}, (refused("UINT8"),)),
    "activation_per_channel": ({"activation_channels"}, (floats("c1"),)),
    "activation_rank_one": ({"scale_rank"}, (floats("c1"),)),
    "matmul_rank_one": (CLEAN, (int8("mm"),)),
    "shortcut_rank_one": ({"scale_rank"}, (floats("c2"), int8("c1", "c3"))),
    "weight_scale_count": ({"scale_length"}, (refused("K == scaleSize"),)),
    "zero_point_count": ({"scale_length"}, (refused("zeroPointSize == scaleSize"),)),
    "scale_zero": ({"scale_value"}, (POSITIVE,)),
    "scale_integer": ({"scale_value"}, (refused("c1_x/Q"),)),
    "scale_negative": ({"scale_value"}, (POSITIVE,)),
    "scale_tiny": (CLEAN, (int8("c1"),)),
    "half_scale_underflow": ({"scale_value"}, (POSITIVE,)),
    "scale_computed": ({"scale_computed"}, (refused("SIGSEGV"),)),
    "bias_int32": ({"integer_type"}, (refused("Int32"),)),
    "constant_scalar": ({"constant_scalar", "fake_quantize"}, (refused("only allowed before DQ"),)),
    "constant_rank_four": ({"fake_quantize"}, (kernel("RounCastCastMul"),)),
    "qlinear_conv": ({"operator"}, (refused("qlc"),)),
    "dynamic_quantize": ({"operator"}, (refused("dql"),)),
    "microsoft_domain": ({"domain"}, (int8("c1"),)),
    "half_microsoft_domain": ({"domain"}, (int8("c1"),)),
    "int16_activation": ({"integer_type"}, (refused("unsupported datatype"),)),
    "int4_weights": (CLEAN, (floats("mm"),)),
    "int4_odd_number": ({"four_bits", "weights_apart"}, (refused("odd tensor volume"),)),
    "int4_weights_int8_activation": ({"mixed_formats"}, (refused("is_constant()"),)),
    "int4_own_spelling": ({"own_spelling"}, (floats("mm"),)),
    "packed_weights": ({"block_operator"}, (refused("MatMulNBits"),)),
    "weights_cast_to_float": ({"cast_weight"}, (refused("only allowed before DQ"),)),
    "int4_weights_in_one_block": ({"weights_apart"}, (floats("mm"), kernel("CastMul"))),
    "int8_blocks": ({"blocks"}, (refused("is_constant()"),)),
    "int8_blocks_float": ({"weights_apart"}, (floats("mm"), kernel("CastMulCast"))),
    "queries_stored": ({"split_weights"}, (floats("mm"), kernel("CastMulFc"))),
    "queries_behind_q": (CLEAN, (int8("mm"),)),
    "fp8_weights": ({"eight_bit_float"}, (refused("fp8_e4m3"),)),
    "fp8_seven_taps": ({"eight_bit_float", "kernel_taps"}, (refused("fp8_e4m3"),)),
    "fp8_unsaturated": ({"eight_bit_float", "saturation"}, (refused("fp8_e4m3"),)),
    "fp8_unsaturated_beyond": ({"eight_bit_float", "saturation", "weight_value"}, (refused("fp8_e4m3"),)),
    "fp8_weights_not_numbers": ({"eight_bit_float", "weight_value"}, (refused("fp8_e4m3"),)),
    "fp8_weights_beyond": ({"eight_bit_float", "weight_value"}, (refused("fp8_e4m3"),)),
    "fp8_zero_point": ({"eight_bit_float", "zero_point"}, (refused("fp8_e4m3"),)),
    "fp8_old_opset": ({"eight_bit_float", "opset"}, (refused("fp8_e4m3"),)),
    "fp8_times_int8": ({"eight_bit_float", "mixed_formats"}, (refused("fp8_e4m3"),)),
    "microscaled": ({"eight_bit_float", "microscaled"}, (refused("fp8_e4m3"),)),
    "fp4_one_level": ({"four_bit_float", "two_levels"}, (refused("fp4_e2m1"),)),
    "fp4_constant_blocks": ({"four_bit_float", "constant_blocks"}, (refused("fp4_e2m1"),)),
    "fp4_four_levels": ({"four_bit_float", "scale_form"}, (refused("Scale input must be a scalar"),)),
    "fp4_free_blocks": ({"four_bit_float", "free_blocks"}, (refused("TRT_FP4DynamicQuantize"),)),
    "attention_operator": ({"attention"}, (refused("decomposable"),)),
    "half_scale_float_data": ({"mixed_types"}, (refused("must be of same type"),)),
    "quant_of_qonnx": ({"other_quantizer"}, (refused("Quant"),)),
    "weight_clipped": (CLEAN, (int8("c1"),)),
    "conv_int8_blocks": ({"blocks"}, (refused("w/DQ"),)),
    "matmul_weight_axis_misfit": ({"scale_length"}, (refused("K == scaleSize"),)),
    "int4_channels_int8_activation": ({"mixed_formats"}, (int8("mm"),)),
    "float_head": ({"float_part"}, (int8("c1", "c4"), floats("h1", "h4"))),
    "float_head_before_half": ({"float_part"}, (int8("c1", "c4"), floats("h1", "h4"))),
    "float_head_half": (CLEAN, (int8("c1", "c4"), floats("h1", "h4"), fewer_bytes_than("float_head"))),
    "half_chain": (CLEAN, (int8("c1", "c2"),)),
    "half_weights_rank_one": ({"weight_rank", "per_tensor_weights"}, (refused("same_symbolic_shapes"),)),
    "float_weights_rank_one": ({"per_tensor_weights"}, (int8("c1"),)),
    "half_old_opset": ({"opset"}, (int8("c1", "c2"),)),
    "conv_weight_axis_one": ({"weight_axis"}, (floats("c1"), kernel("CastMulCast"))),
    "matmul_weight": (CLEAN, (int8("mm"),)),
    "matmul_weight_axis_zero": ({"weight_axis"}, (floats("mm"), kernel("CastMulFc"))),
    "gemm_weight_axis_one": ({"weight_axis"}, (floats("mm"), kernel("CastMulFc"))),
    "matmul_weight_only": (CLEAN, (floats("mm"), no_kernel("CastMul"))),
    "matmul_activation_only": ({"half_quantized"}, (floats("mm"), kernel("CastMulFc"))),
    "matmul_both": (CLEAN, (int8("mm"),)),
    "matmul_one_of_two": ({"half_quantized"}, (floats("mm"), kernel("CastMulFc"))),
    "weight_transposed": (CLEAN, (int8("mm"),)),
    "relu_behind_pair": ({"fake_quantize", "half_quantized"}, (floats("c1"), kernel("RounCastCastMulRelu"))),
    "maxpool_behind_pair": (CLEAN, (int8("c1"),)),
    "concat_same_scale": (CLEAN, (int8("c3"),)),
    "concat_other_scales": ({"concat"}, (int8("c3"), more_roundings_than("concat_same_scale"))),
    "concat_same_scale_bare": (CLEAN, (int8("c3"),)),
    "concat_other_scales_bare": ({"concat"}, (floats("c3"), int8("c1", "c2"))),
    "concat_pair_behind": (CLEAN, (int8("c3"), as_many_kernels_as("concat_same_scale"))),
    "residual_shortcut": (CLEAN, (int8("c2", "c3"),)),
    "residual_bare": ({"residual_add"}, (int8("c2", "c3"), writes(DType.INT8, DType.FLOAT32))),
    "residual_both": ({"residual_add"}, (int8("c2", "c3"), more_roundings_than("residual_shortcut"))),
    "residual_conv_only": ({"residual_add"}, (writes(DType.INT8, DType.FLOAT32), more_roundings_than("residual_bare"))),
    "pair_before_relu": ({"inside_fusion"}, (int8("c1", "c2"), more_roundings_than("chain_ok"))),
    "pair_inside_silu": ({"inside_fusion", "fake_quantize"}, (more_roundings_than("silu"),)),
    "silu": (CLEAN, (int8("c1", "c2"), kernel("Silu"))),
    "pair_behind_pair": ({"requantized"}, (int8("c1"), more_roundings_than("pair_behind_pair_same"))),
    "pair_behind_pair_same": (CLEAN, (int8("c1"),)),
    "requantized_behind_pool": ({"requantized"}, (int8("c2"),)),
    "depthwise": (CLEAN, (int8("dw"),)),
    "half_depthwise": ({"depthwise"}, (int8("dw"), more_bytes_than("half_depthwise_float"))),
    "half_depthwise_float": (CLEAN, (floats("dw"),)),
    "depthwise_float": ({"float_island"}, (floats("dw"), more_kernels_than("depthwise"))),
    "grouped": (CLEAN, (int8("c1"),)),
    "conv_transpose": ({"conv_transpose"}, (floats("up"), kernel("CastMulCast"))),
    "global_pool": ({"pooling"}, (more_roundings_than("global_pool_float"), as_many_kernels_as("global_pool_float"))),
    "global_pool_float": (CLEAN, (int8("c1", "c2"),)),
    "average_pool": ({"pooling"}, (kernel("avgpool"), kernel("RounCastCastMul"))),
    "nearest_resize": (CLEAN, (int8("c2"),)),
    "attention_whole": (CLEAN, (int8("qk", "av"), kernel("_gemm_mha"))),
    "attention_result_bare": ({"attention"}, (no_kernel("_gemm_mha"), more_kernels_than("attention_whole"))),
    "attention_scores_only": ({"attention"}, (no_kernel("_gemm_mha"), more_kernels_than("attention_whole"))),
    "attention_probabilities_bare": (
        {"attention", "half_quantized"}, (no_kernel("_gemm_mha"), more_kernels_than("attention_whole")),
    ),
    "attention_float": (CLEAN, (no_kernel("Roun"),)),
    "pair_before_softmax": ({"fake_quantize"}, (int8("mm"), kernel("RounCastCastMulMaxrSub"))),
    "pair_before_norm": ({"fake_quantize"}, (int8("mm"), kernel("RounCastCastMulMean"))),
    "pair_before_output": ({"output_pair"}, (int8("c1"), kernel("RounCastCastMul"))),
    "integer_output": (CLEAN, (int8("c1"),)),
    "integer_input": (CLEAN, (int8("c1"),)),
    "dangling_quantize": ({"dangling"}, (int8("c1"), as_many_kernels_as("weights_prequantized"))),
    "two_scales_for_one_tensor": ({"two_scales"}, (writes(DType.INT8, DType.INT8),)),
    "one_scale_for_two": (CLEAN, (int8("c1", "c2"), lambda result: not writes(DType.INT8, DType.INT8)(result))),
    "shared_pair": (CLEAN, (as_many_kernels_as("one_scale_for_two"),)),
    "shared_with_float": ({"float_reader"}, (int8("c1"), kernel("CastMulSigm"))),
    "missing_zero_point": (CLEAN, (int8("c1"),)),
    "pad_behind_pair": (CLEAN, (int8("c0", "c1"), as_many_kernels_as("chain_ok"))),
    "scale_wrong_axis": ({"scale_length"}, (refused("Axis must be"),)),
    "scale_wrong_axis_of_one_half": ({"scale_length"}, (refused("c1_w/Q"),)),
    "halves_apart": ({"halves"}, (int8("c1"),)),
    "resize_behind_pair": ({"held_back"}, (floats("c2"), kernel("CastMulResi"))),
    "channel_pad_behind_pair": ({"held_back"}, (floats("c2"), int8("c1"))),
    "concat_with_a_padded_branch": ({"held_back"}, (floats("c3"), int8("c1"))),
    "own_pad_behind_pair": (CLEAN, (int8("c1", "c2"),)),
    "resize_before_pair": (CLEAN, (int8("c2"), kernel("RounCastResi"))),
    "linear_resize": ({"fake_quantize"}, (int8("c2"), more_roundings_than("linear_resize_before_pair"))),
    "linear_resize_before_pair": (CLEAN, (int8("c2"), as_many_kernels_as("linear_resize"))),
    "int4_activation": ({"four_bits"}, (int8("mm"), as_many_kernels_as("matmul_weight"))),
    "zero_point_computed": ({"zero_point"}, (refused("not an initializer"),)),
    "scale_computed_matmul": ({"scale_computed"}, (floats("mm"),)),
    "fp4_weights": ({"four_bit_float", "weights_apart"}, (refused("fp4_e2m1"),)),
    "bias_int8": ({"bias"}, (int8("c1"), kernel("MulMulAdd"), as_many_kernels_as("bias_float"))),
    "bias_float": (CLEAN, (int8("c1"), no_kernel("MulMulAdd"))),
    "plugin_between": ({"plugin"}, (refused("Swirl"),)),
    "odd_channels": (CLEAN, (int8("c1"), kernel("Conc"))),
    "one_row": ({"small_product"}, (more_kernels_than("one_row_float"),)),
    "one_row_float": (CLEAN, (no_kernel("Roun"),)),
    "narrow_head": ({"small_product"}, (more_kernels_than("narrow_head_float"),)),
    "narrow_head_float": (CLEAN, (floats("mm"),)),
    "sum_read_as_float": ({"float_result"}, (more_roundings_than("sum_float"), as_many_kernels_as("sum_float"), as_many_bytes_as("sum_float"))),
    "sum_float": (CLEAN, (no_kernel("Roun"),)),
    "maxpool_read_as_float": (CLEAN, (int8("c1"), fewer_bytes_than("maxpool_float"))),
    "maxpool_float": (CLEAN, (int8("c1"),)),
    "fork_moved_to_float": ({"half_quantized"}, (floats("mm"), int8("c2"), fewer_bytes_than("fork_float"))),
    "fork_float": (CLEAN, (floats("mm"), int8("c2"))),
    "half_weights_per_tensor": ({"per_tensor_weights"}, (int8("c1"), correlation_writes(DType.FLOAT16))),
    "depthwise_swish": (CLEAN, (int8("dw", "c2"), kernel("Silu"))),
    "pair_before_batchnorm": ({"inside_fusion"}, (int8("c1", "c2"), more_roundings_than("batchnorm"))),
    "batchnorm": (CLEAN, (int8("c1", "c2"),)),
    "weight_cast": (CLEAN, (int8("c1"),)),
    "probabilities_coarse": ({"probabilities"}, (kernel("_gemm_mha"), as_many_kernels_as("attention_whole"))),
    "fp8_probabilities": ({"eight_bit_float", "probabilities"}, (refused("fp8_e4m3"),)),
    "matmul_integer": ({"operator"}, (refused("mmi"),)),
    "dangling_dequantize": ({"dangling"}, (int8("c1"), as_many_kernels_as("weights_prequantized"))),
    "gemm_weight": (CLEAN, (int8("mm"),)),
    "conv_transpose_per_tensor": ({"conv_transpose"}, (floats("up"), kernel("CastMul"))),
    "conv_inside_if": ({"hidden"}, (kernel("correlation"), kernel("MulMinMaxRounCast"), no_kernel("CastMulCast"))),
    "pair_inside_if": ({"hidden"}, (kernel("RounCastCastMul"),)),
}  # fmt: skip


def test_every_graph_has_a_claim():
    assert CASES.keys() == GRAPHS.keys()


@pytest.mark.slow  # an engine for each graph
@pytest.mark.parametrize("name", CASES)
def test_the_builder_does_what_lint_says_and_predict_foresees(name, tmp_path):
    expected, claims = CASES[name]
    model = load(models.save(GRAPHS[name](), tmp_path))
    report = lint(model)
    assert {finding.rule for finding in report.findings} == expected
    result = built(name)
    assert all(claim(result) for claim in claims), result
    if not result.error:
        assert not any(finding.severity.value == "error" for finding in report.findings)
        foreseen = (node for node in predict(model).nodes if node.compute)
        known = {(node, word) for node, word in result.precision if word != "unknown"}
        judged = {node for node, _ in known}
        assert {(n.node, _word(n.precision)) for n in foreseen if n.node in judged} == known
    else:
        assert any(finding.severity.rank for finding in report.findings)


@pytest.mark.parametrize("target", ["sm89", "sm120"])
def test_fp8_builds_for_newer_gpus(target):
    assert build(GRAPHS["fp8_weights"](), target).error == ""


def test_fp4_builds_for_blackwell_only():
    assert "fp4_e2m1" in build(GRAPHS["fp4_weights"](), "sm89").error
    assert build(GRAPHS["fp4_weights"](), "sm120").error == ""


def test_an_infinite_scale_is_built_and_told():
    proto = GRAPHS["scale_zero"]()
    step = next(tensor for tensor in proto.graph.initializer if tensor.name == "c1_x_s")
    step.CopyFrom(onnx.numpy_helper.from_array(np.float32(np.inf), "c1_x_s"))
    assert int8("c1")(build(proto))


def test_a_scale_that_is_no_number_is_refused():
    proto = GRAPHS["scale_zero"]()
    step = next(tensor for tensor in proto.graph.initializer if tensor.name == "c1_x_s")
    step.CopyFrom(onnx.numpy_helper.from_array(np.float32(np.nan), "c1_x_s"))
    assert POSITIVE(build(proto))


def test_sm75_convolutions_are_not_int8():
    assert dict(build(GRAPHS["chain_ok"](), "sm75").precision) == {"c1": "float", "c2": "float"}


def test_every_rule_is_shown_by_a_graph_or_speaks_of_classic_releases_only():
    shown = {rule for rules, _ in CASES.values() for rule in rules}
    elsewhere = {"old_gpu"}
    silent = set(codes().values()) - shown - elsewhere
    assert all("rtx" not in rulebook().rules[name].targets for name in silent), silent
