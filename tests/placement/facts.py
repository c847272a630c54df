"""What is documented about Q/DQ placement, in our words, and which rule and graph stand for it.

`source` numbers the fact: T1 to T23 are the placement cases measured with TensorRT for RTX, S1 to S13 what is known of
Q/DQ semantics, P1 to P18 the rules of placement and propagation, U1 to U17 what users ran into.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """A documented fact.

    Attributes:
        source: its number; several entries may share one.
        says: the fact.
        codes: what lint reports on each graph; empty where the fact says that all is well.
        graphs: names in `qdq.GRAPHS`.
        builder: what lint is asked for, as `--for` takes it.
        sm: GPU architectures that lint is told.
        elsewhere: for facts that are not about a graph, the file that deals with them.
    """

    source: str
    says: str
    codes: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    builder: str = "rtx"
    sm: tuple[str, ...] = ()
    elsewhere: str = ""


def _says(source: str, says: str, codes: str, graphs: str, builder: str = "rtx", sm: str = "") -> Fact:
    found = tuple(f"QDQ{number}" for number in codes.split())
    return Fact(source, says, found, tuple(graphs.split()), builder, tuple(sm.split()))


def _elsewhere(source: str, says: str, path: str) -> Fact:
    return Fact(source, says, elsewhere=path)


PLACEMENT_CASES = (
    _says("T1", "an activation scale of shape [1] makes a Conv float", "121", "activation_rank_one shortcut_rank_one"),
    _says("T1", "a MatMul does not mind it", "", "matmul_rank_one"),
    _says("T2", "an activation with a scale per channel is float", "122", "activation_per_channel"),
    _says("T3", "a Conv whose weights have no Q/DQ is float", "120", "weight_bare"),
    _says("T4", "weights alone: a Conv dequantizes them at run time", "120", "activation_bare"),
    _says("T4", "weights alone: a MatMul dequantizes them itself", "", "matmul_weight_only"),
    _says("T5", "a bare shortcut costs its producer a float copy", "127", "residual_bare residual_conv_only"),
    _says("T6", "Q/DQ on both branches of a residual rounds twice", "127", "residual_both"),
    _says("T7", "a pair between Conv and Relu is one rounding more", "126", "pair_before_relu"),
    _says("T8", "Concat branches of two scales are quantized twice", "125", "concat_other_scales"),
    _says("T8", "without Q/DQ behind it the next Conv is float", "125", "concat_other_scales_bare"),
    _says("T9", "one pair behind a Concat is enough", "", "concat_pair_behind concat_same_scale"),
    _says("T10", "a depthwise Conv is INT8", "", "depthwise depthwise_swish"),
    _says("T10", "left float between INT8 layers it costs kernels", "134", "depthwise_float"),
    _says("T10", "beside FP16 its kernel moves as many bytes as FP32", "156", "half_depthwise"),
    _says("T10", "beside FP16 it may be float", "", "half_depthwise_float"),
    _says("T11", "grouped convolutions and odd channels are INT8, padded", "", "grouped odd_channels"),
    _says("T12", "a product of two activations needs both in INT8", "", "matmul_both"),
    _says("T12", "with one of them it is float", "120", "matmul_one_of_two matmul_activation_only"),
    _says("T13", "MatMul weights with scales along K are float", "123", "matmul_weight_axis_zero"),
    _says("T14", "weights with one scale are INT8", "144", "weights_per_tensor float_weights_rank_one"),
    _says("T14", "in FP16 such a Conv writes Half itself", "144", "half_weights_per_tensor"),
    _says("T15", "a zero point other than 0 is refused", "101",
          "activation_zero_point weight_zero_point activation_uint8_128 weight_uint8_128"),
    _says("T16", "UINT8 with zero point 0 becomes INT8", "102", "activation_uint8_zero"),
    _says("T16", "with a Cast between Q and DQ it is refused", "102", "activation_uint8_cast"),
    _says("T17", "a scale of zero or less is refused", "103", "scale_zero scale_negative half_scale_underflow"),
    _says("T18", "an INT32 bias behind DQ is refused", "105", "bias_int32"),
    _says("T19", "a scalar INT8 constant is refused", "106", "constant_scalar"),
    _says("T19", "with four dimensions it builds, and stays float", "133", "constant_rank_four"),
    _says("T20", "operators on integers are unknown", "107", "qlinear_conv dynamic_quantize"),
    _says("T21", "INT4 block weights are one float product", "", "int4_weights"),
    _says("T21", "an INT8 activation beside them fails", "182", "int4_weights_int8_activation"),
    _says("T22", "FP8 is not for SM86", "111", "fp8_weights", sm="86"),
    _says("T22", "FP8 builds for SM89 and SM120", "", "fp8_weights", sm="89 120"),
    _says("T22", "stored weights of queries, keys and values are cut as floats", "192", "queries_stored"),
    _says("T22", "behind Q they are cut in few bits", "", "queries_behind_q"),
    _says("T22", "FP8 convolutions take 32 taps", "183", "fp8_seven_taps", sm="89"),
    _says("T20", "packed weights are an operator of onnxruntime", "190", "packed_weights"),
    _says("T19", "stored integers go through DequantizeLinear only", "191", "weights_cast_to_float"),
    _says("T23", "TensorRT's own spelling of DQ is read by nobody else", "189", "int4_own_spelling"),
    _says("T22", "saturate=0 is not read", "187", "fp8_unsaturated", sm="89"),
    _says("T22", "NaN in stored FP8 weights is not noticed", "188", "fp8_weights_not_numbers", sm="89"),
    _says("T22", "FP8 weights far beyond 448 steps are clipped without a word", "188", "fp8_weights_beyond", sm="89"),
    _says("T22", "without saturation they are clipped just so", "187 188", "fp8_unsaturated_beyond", sm="89"),
    _says("T22", "a zero point of FP8 is refused like any other", "101", "fp8_zero_point", sm="89"),
    _says("T22", "FP8 in an opset before 19 is out of the standard", "113", "fp8_old_opset", sm="89"),
    _says("T22", "FP8 and INT8 are not multiplied with each other", "182", "fp8_times_int8", sm="89"),
    _says("T22", "MXFP8 is computed in float", "186", "microscaled", sm="89"),
    _says("T12", "the operator Attention is float", "132", "attention_operator"),
    _says("T21", "INT4 in one block is made float first", "184", "int4_weights_in_one_block"),
    _says("T23", "com.microsoft Q/DQ are read", "108", "microsoft_domain half_microsoft_domain"),
)  # fmt: skip

SEMANTICS = (
    _elsewhere("S1", "values are rounded half to even and clipped", "qdqtool/graph/emulation/integer_form.py"),
    _says("S2", "the zero point must be a constant, and 0", "101", "zero_point_computed activation_zero_point"),
    _says("S3", "a scale must be positive and a float", "103", "scale_zero scale_integer"),
    _says("S3", "a scale must be known at build time", "104", "scale_computed scale_computed_matmul"),
    _says("S3", "releases after 10.0 read others", "104", "scale_computed", "10.16"),
    _says("S4", "activations have one scale", "122", "activation_per_channel", "10"),
    _says("S4", "scales per block are for 4 bits", "110", "int8_blocks"),
    _says("S4", "weights alone, they are made float first", "184", "int8_blocks_float"),
    _says("S4", "INT4 is for weights only", "109", "int4_activation"),
    _says("S4", "an odd number of INT4 values is refused", "109", "int4_odd_number"),
    _says("S4", "INT4 came with TensorRT 10", "109", "int4_weights", "8.6"),
    _says("S4", "FP4 needs Blackwell", "117", "fp4_weights", sm="86 120"),
    _says("S4", "FP4 weights beside a float activation are made float first", "184", "fp4_weights", sm="120"),
    _says("S4", "FP4 with scales of one level is float", "185", "fp4_one_level", sm="120"),
    _says("S4", "FP4 with constant block scales behind a sum of rows is not built", "196", "fp4_constant_blocks", sm="120"),
    _says("S4", "FP4 came with TensorRT 10.8", "117", "fp4_weights", "10.3", "120"),
    _says("S4", "Conv scales go along axis 0", "123", "conv_weight_axis_one"),
    _says("S4", "Gemm scales go along axis 0 with transB", "123", "gemm_weight_axis_one"),
    _says("S4", "and along axis 1 without", "", "gemm_weight matmul_weight"),
    _says("S5", "ConvTranspose: axis 0 in 8.0 to 8.6", "137", "conv_transpose", "8.0"),
    _says("S5", "ConvTranspose: axis 0 in 8.2 too", "137", "conv_transpose", "8.2"),
    _says("S5", "ConvTranspose: axis 0 in 8.4 to 8.6 too", "137", "conv_transpose", "8.6"),
    _says("S5", "ConvTranspose: unknown in 9", "137", "conv_transpose", "9.3"),
    _says("S5", "ConvTranspose: unknown in 10", "137", "conv_transpose", "10.16"),
    _says("S5", "ConvTranspose: unknown in 11", "137", "conv_transpose", "11"),
    _says("S5", "ConvTranspose: one scale is safe", "", "conv_transpose_per_tensor", "8.6"),
    _says("S5", "ConvTranspose: never INT8 in RTX", "130", "conv_transpose conv_transpose_per_tensor"),
    _says("S6", "scales have the type of the data", "112", "half_scale_float_data"),
    _says("S6", "TensorRT 8 reads FP32 scales", "112", "half_chain", "8.6"),
    _says("S6", "FP16 scales need opset 19", "113", "half_old_opset"),
    _says("S6", "one FP16 scale must be a scalar", "115", "half_weights_rank_one"),
    _says("S6", "FP16 with scalar scales is INT8", "", "half_chain"),
    _says("S7", "weights may be stored as INT8", "", "weights_prequantized"),
    _says("S7", "8.x wants FP32 weights behind Q", "145", "weights_prequantized", "8.6"),
    _says("S8", "the bias stays float", "148", "bias_int8"),
    _says("S8", "in the same kernels", "", "bias_float"),
    _says("S8", "an INT32 bias is refused", "105", "bias_int32"),
    _says("S9", "16-bit integers are refused", "105", "int16_activation"),
    _says("S10", "QLinear, Integer and Dynamic operators are refused", "107",
          "qlinear_conv matmul_integer dynamic_quantize"),
    _says("S11", "bodies of If and Loop are not optimized", "114", "pair_inside_if conv_inside_if"),
    _elsewhere("S12", "weakly typed builds need a flag for INT8", "qdqtool/backends/builders/trt.py"),
    _says("S13", "the number of scales and the axis must fit", "116",
          "weight_scale_count zero_point_count scale_wrong_axis scale_wrong_axis_of_one_half"),
)  # fmt: skip

PROPAGATION = (
    _says("P1", "Q and DQ pass operators that move values", "", "maxpool_behind_pair nearest_resize"),
    _says("P1", "the scale must not change on the way", "128", "requantized_behind_pool"),
    _says("P1", "an average does not commute", "131", "average_pool global_pool"),
    _says("P2", "averages fuse with DQ and Q in classic releases", "", "average_pool global_pool", "10"),
    _says("P3", "all inputs of a product are quantized", "120", "weight_bare matmul_one_of_two", "10"),
    _says("P4", "Q stands behind the activation", "126", "pair_before_relu pair_inside_silu", "10"),
    _says("P4", "DQ, Conv, SiLU, Q is one layer", "", "silu", "10"),
    _says("P5", "BatchNormalization fuses, nothing stands before it", "126", "pair_before_batchnorm"),
    _says("P5", "and so folded it needs no care", "", "batchnorm", "10"),
    _says("P6", "Q/DQ on the shortcut only", "", "residual_shortcut", "10"),
    _says("P6", "both branches split the fusion", "127", "residual_both", "10"),
    _says("P7", "INT8 in wants INT8 out", "146", "sum_read_as_float"),
    _says("P7", "INT8 in wants INT8 out", "146", "sum_read_as_float", "10"),
    _says("P7", "or neither", "", "sum_float"),
    _says("P7", "a MaxPool in front of a float reader still saves bytes", "", "maxpool_read_as_float maxpool_float"),
    _says("P7", "Q/DQ before a float operator only rounds", "133",
          "pair_before_softmax pair_before_norm relu_behind_pair linear_resize"),
    _says("P8", "no pair between Pad and Conv", "136", "pad_behind_pair", "8.6"),
    _says("P8", "RTX takes the Pad along", "", "pad_behind_pair own_pad_behind_pair"),
    _says("P8", "a pair behind a pair rounds twice", "128", "pair_behind_pair"),
    _says("P9", "weights are better per channel", "144", "weights_per_tensor", "10"),
    _says("P10", "Concat branches share one scale", "125", "concat_other_scales", "10"),
    _says("P10", "one tensor has one scale", "129", "two_scales_for_one_tensor"),
    _says("P10", "a pair that an INT8 layer needs may reach a float one too", "120", "fork_moved_to_float"),
    _says("P10", "without the pair nothing is wrong", "", "fork_float"),
    _says("P11", "Resize, then the pair, then Conv", "", "resize_before_pair linear_resize_before_pair"),
    _says("P11", "a pair before the Resize alone leaves the Conv float", "139",
          "resize_behind_pair channel_pad_behind_pair concat_with_a_padded_branch"),
    _says("P12", "attention: all four inputs and the result", "132",
          "attention_scores_only attention_result_bare attention_probabilities_bare"),
    _says("P12", "attention: whole or float", "", "attention_whole attention_float"),
    _says("P12", "FP8 probabilities have the scale 1/448", "151", "fp8_probabilities"),
    _says("P12", "no probability is above 1", "151", "probabilities_coarse"),
    _says("P13", "DQ feeds the product directly", "124", "weight_transposed weight_cast", "10"),
    _says("P13", "RTX looks through", "", "weight_transposed weight_cast"),
    _says("P14", "plugins fuse with nothing", "149", "plugin_between"),
    _elsewhere("P15", "refitting relative scales undoes fusions", "qdqtool/backends/builders/trt.py"),
    _elsewhere("P16", "results are compared by a metric", "qdqtool/accuracy/metrics/sqnr_db.py"),
    _says("P17", "depthwise and Swish: no kernel in 8.x", "150", "depthwise_swish", "8.6"),
    _says("P17", "fixed in 10", "", "depthwise_swish", "10"),
    _says("P17", "below SM75 kernels are missing", "135", "chain_ok", "8.6", "61"),
    _says("P17", "SM75 has no INT8 convolution in RTX", "135", "chain_ok", sm="75 86"),
    _says("P17", "SM80 and newer have", "", "chain_ok", sm="80 86 89 120"),
    _says("P18", "one row, or fewer than 16 rows or columns: float", "147", "one_row narrow_head"),
    _says("P18", "left float they are fine", "", "one_row_float narrow_head_float"),
    _says("P18", "a pair per consumer", "143", "shared_pair", "8.6"),
    _says("P18", "one pair for all is as good in RTX", "", "shared_pair one_scale_for_two"),
)  # fmt: skip

PAINS = (
    _says("U1", "a float operator behind a shared pair sees rounded values", "141", "shared_with_float"),
    _says("U2", "a pair at the output only rounds it", "142", "pair_before_output"),
    _says("U3", "halves that nobody reads", "140", "dangling_quantize dangling_dequantize"),
    _says("U4", "the halves of a pair disagree", "138", "halves_apart"),
    _says("U5", "a pooled layer without Q/DQ between INT8 layers", "", "global_pool_float"),
    _says("U6", "INT8 inputs and outputs of the model itself", "", "integer_input integer_output"),
    _says("U7", "a DQ without its own zero point", "", "missing_zero_point"),
    _says("U8", "a tiny positive scale is legal", "", "scale_tiny"),
    _says("U9", "two pairs with one scale are one", "", "pair_behind_pair_same concat_same_scale_bare"),
    _says("U10", "a spectrogram is lost in INT8 before its logarithm", "197", "logarithm_of_quantized"),
    _says("U10", "quantized behind it it is not", "", "logarithm_of_float"),
    _says(
        "U11", "one global scale stands above the block scales of NVFP4", "198", "fp4_four_levels", sm="120"
    ),
    _says(
        "U12",
        "the length of a blocked axis is known when the engine is built",
        "199",
        "fp4_free_blocks",
        sm="120",
    ),
    _says("U13", "no builder imports the quantizers of training tools", "193", "quant_of_qonnx"),
    _says("U13", "a Clip of the integers of a weight is folded", "", "weight_clipped"),
    _says("U14", "what training leaves float is slower in FP32 than in FP16", "155", "float_head"),
    _says("U14", "a part in FP16 does not change the type of another part", "155", "float_head_before_half"),
    _says("U14", "in FP16 it is not", "", "float_head_half"),
    _says("U15", "scales go along the axis that has as many channels", "116", "matmul_weight_axis_misfit"),
    _says("U16", "blocks of a Conv go along no axis that is read", "110", "conv_int8_blocks"),
    _says("U18", "the parser refuses some forms of Resize, with Q/DQ and without", "160", "resize_refused"),
    _says("U18", "classic TensorRT was not asked", "", "resize_refused", "10"),
    _says("U17", "INT4 weights beside INT8 activations are widened", "182", "int4_channels_int8_activation"),
)

FACTS = (*PLACEMENT_CASES, *SEMANTICS, *PROPAGATION, *PAINS)
