"""What names tell: kernels and layers."""

from __future__ import annotations

import pytest

from qdqtool.core.engine import Certainty
from qdqtool.core.tensors import DType
from qdqtool.engine import read_text
from qdqtool.trt.names import probable_nodes
from qdqtool.trt.tactics import math_type, tensor_cores


@pytest.mark.parametrize(
    ("tactic", "dtype", "cores"),
    [
        (
            "sm80_xmma_fprop_implicit_gemm_interleaved_i8f16_i8i32_f32_nchw_vect_c_32_tensor16x8x32",
            DType.INT8,
            True,
        ),
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tensor16x8x16", DType.FLOAT16, True),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tensor16x8x8", DType.FLOAT32, True),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_g1_ffma", DType.FLOAT32, False),
        ("ampere_int8_i8816cudnn_int8_256x128_ldg16_relu_small_nt_v1", DType.INT8, True),
        ("ampere_fp32_icudnn_int8x4_128x64_relu_medium_nn_v1", DType.INT8, False),
        ("ampere_first_layer_filter3x3_imma_fwd", DType.INT8, True),
        ("sm72_xmma_convolution_depthwiseSdcrr_INT8NCxHW32_R3_S3", DType.INT8, False),
        ("maxwell_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v0", DType.FLOAT32, False),
        ("turing_h1688cudnn_256x64_sliced1x2_ldg8_relu_exp", DType.FLOAT16, True),
        ("volta_fp16_s884cudnn_fp16_128x128_ldg8_relu_f2f_exp_interior_nhwc_tn_v1", DType.FLOAT16, True),
        ("ampere_int8_i16832cudnn_int8_128x128_ldg16_relu_singleBuffer_nhwc_tn_v1", DType.INT8, True),
        ("cutlass_tensorop_i16832fprop_optimized_s8_128x64_128x2_nhwc_align16", DType.INT8, True),
        ("__myl_CastReshCast_0x7e55", None, None),
        ("", None, None),
    ],
)
def test_kernel_names_tell_type_and_cores(tactic: str, dtype: DType | None, cores: bool | None):
    assert (math_type(tactic), tensor_cores(tactic)) == (dtype, cores)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("conv1.weight + QuantizeLinear_7 + Conv_9", ("QuantizeLinear_7", "Conv_9")),
        ("Conv_0 + PWN(Clip_3)", ("Conv_0", "Clip_3")),
        ("Reformatting CopyNode for Input Tensor 0 to Conv_9", ()),
        ("fc.bias + (Unnamed Layer* 306) [Shuffle] + Gemm_1", ("Gemm_1",)),
        ("{ForeignNode[a...b]}", ()),
        ("__myl_Tran_myl0_8", ()),
        ("c1_myl0_1", ("c1",)),
    ],
)
def test_layer_names_hold_probable_nodes(name: str, nodes: tuple[str, ...]):
    assert probable_nodes(name) == nodes


def test_nodes_from_names_are_inferred_and_from_metadata_stated():
    text = (
        "Layers:\n"
        "Name: a + b, LayerType: CaskConvolution, Inputs: [], Outputs: [], TacticName: , Metadata: [ONNX Layer: c]\n"
        "Name: a + b, LayerType: CaskConvolution, Inputs: [], Outputs: [], TacticName: , StreamId: 0\n"
    )
    stated, inferred = read_text(text, where="test").layers
    assert (stated.onnx_nodes, stated.certainty) == (("c",), Certainty.STATED)
    assert (inferred.onnx_nodes, inferred.certainty) == (("a", "b"), Certainty.INFERRED)


def test_a_log_gives_its_lines_the_kernel_names_of_its_tuning():
    text = (
        "[V] conv Set Tactic Name: ampere_int8_i8816cudnn_int8_256x128 Tactic: -5710683017348931771\n"
        "Layer(CaskConvolution): conv, Tactic: 0xb0bf940d5e0f9f45, x (Int8[1,64:32,8,8]) -> y (Int8[1,64:32,8,8])\n"
    )
    layer = read_text(text, where="test").layers[0]
    assert layer.tactic == "ampere_int8_i8816cudnn_int8_256x128"
    assert (layer.precision, layer.precision_certainty, layer.tensor_cores) == (
        DType.INT8,
        Certainty.STATED,
        True,
    )
