"""Causes of failed builds in the model: its file, quantization, formats, types, shapes and plug-ins."""

from __future__ import annotations

from qdqtool.core.causes import Cause, Wording
from qdqtool.core.wording import Command
from qdqtool.trt.causes.classes import CONVERT, DECIDE_IF, FIXED, LINT

_SHAPES = (
    "pass --min-shapes, --opt-shapes and --max-shapes (build.opt_shapes in a recipe), as input:1x3x224x224; "
    "trtexec: --minShapes, --optShapes and --maxShapes"
)
_NEWER = "build with another release of TensorRT; if the error remains, report it to NVIDIA with the model"

PARSER = (
    Cause(
        name="bad-name",
        area="file",
        pattern=r"a name is not UTF-8",
        meaning="a name in the model is not valid UTF-8: the file is damaged",
        fix="export the model again",
        fault="model file",
    ),
    Cause(
        name="not-onnx",
        area="file",
        pattern=r"MODEL_DESERIALIZE_FAILED|Failed to parse the ONNX model|Could not open file|Model missing or format not recognized"
        r"|Could not parse deploy file|Model should be in bin or model format",
        meaning="the file cannot be parsed as an ONNX model: it is missing, damaged, truncated or another kind of file",
        fix="check the path and the format, or export the model again",
        fault="model file",
    ),
    Cause(
        name="no-producer",
        area="file",
        pattern=r"tensors\.count\(input_name\)",
        meaning="a node reads a tensor that the parser does not find among the nodes, inputs and constants of the model",
        fix="check the model with onnx.checker.check_model; export it again with a newer exporter, or use a newer release of TensorRT",
        fault="model file",
    ),
    Cause(
        name="missing-weights",
        area="file",
        pattern=r"Failed to import initializer|Failed to open file|[Ff]ailed to read weights from external|Size mismatch when importing initializer|not allowed in ONNX external weights|[Ee]xternal data",
        meaning="a weight cannot be read: the weight file next to the model is missing or too short, or the type is unknown",
        fix="put the file with the weights next to the model, under the name in the model",
        fault="model file",
        rank="general",
        before=("constant-type",),
    ),
    Cause(
        name="constant-type",
        area="format",
        pattern=r"Found unsupported (?:datatype|input type)",
        meaning="a constant has a type that TensorRT does not read, such as INT16, UINT16 or FP8 E5M2",
        fix=f"{FIXED} converts INT16 to INT8; {LINT} names the node",
        lint="QDQ105",
    ),
    Cause(
        name="constant-read",
        area="format",
        pattern=r"convert_?[oO]nnx_?[wW]eights",
        meaning="the parser of this release cannot read a constant of the model: its type is FP64, UINT8 or another that this release does not have, or its values are in a separate file",
        fix="build with a newer release, or store the constant as FP32 or INT32 (export the model in FP32); put a separate file with weights next to the model",
        releases="5 to 8",
        rank="general",
    ),
    Cause(
        name="constant-output",
        area="parser",
        pattern=r"at\(output\.name\(\)\)\.is_tensor\(\)",
        meaning="an output of the model is a constant, which the parser of this release cannot make an output",
        fix="remove this output from the model, or build with a newer release",
        releases="6 to 8",
    ),
    Cause(
        name="uff-operator",
        area="plugin",
        pattern=r"UffParser: Validator error: .{0,120}Unsupported operation",
        meaning="the UFF parser does not know an operator: its plug-in is not in the installed plug-in library",
        fix="replace libnvinfer_plugin by one that was compiled from TensorRT's open-source part for this release, or use an ONNX export of the model (TensorRT 9 and newer read no UFF)",
        releases="5 to 8",
    ),
    Cause(
        name="uff-file",
        area="file",
        pattern=r"UffParser: (?:Could not (?:read|open|parse)|Unsupported number of graph)|Failed to open TLT encoded model|[Ff]ailed to (?:parse|decode) .{0,20}(?:etlt|TLT|UFF) model",
        meaning="the UFF or .etlt file is missing, incomplete, or encoded with another key than the configuration has",
        fix="check the path and size of the file (git lfs leaves small placeholders), and the key (tlt-model-key in the nvinfer configuration, -k of tao-converter)",
        fault="model file",
        rank="general",
        before=("uff-operator",),
    ),
    Cause(
        name="if-outputs",
        area="parser",
        pattern=r"different number of output tensors in If conditional|number of outputs .{0,40}(?:then|else) (?:branch|subgraph)",
        meaning="the branches of an If have different numbers of outputs",
        fix=DECIDE_IF,
    ),
    Cause(
        name="layer-norm-old",
        area="parser",
        pattern=r"While parsing node number \d+ \[(?:LayerNormalization|GroupNormalization|Gelu|InstanceNormalization) -> ",
        meaning="the parser refuses a normalization operator of a new opset; releases before 8.6 do not have it",
        fix="build with TensorRT 8.6 or newer (a plug-in library of the release that runs), or export with opset 16, which writes the operator as several simple ones",
        rank="general",
    ),
    Cause(
        name="zero-point",
        area="format",
        pattern=r"shiftIsAllZeros|only zero shifts values|must (?:be|contains?) all zeros|[Nn]on-zero zero point",
        meaning="the zero point is not 0; TensorRT supports symmetric quantization only",
        fix=f"{FIXED} quantizes with zero point 0 (signed INT8)",
        lint="QDQ101",
    ),
    Cause(
        name="bad-scale",
        area="format",
        pattern=r"Scale coefficients must all be positive|scaleAllPositive",
        meaning="a scale is zero, negative or not a number",
        fix="calibrate again on samples that are not constant, and check the weights for NaN",
        lint="QDQ103",
    ),
    Cause(
        name="int32-bias",
        area="format",
        pattern=r"has type Int32 but must have type|only activation types allowed as input|weights are not permitted since they are of type Int32",
        meaning="an INT32 tensor feeds a DequantizeLinear, as onnxruntime writes it for biases",
        fix=f"{FIXED} stores biases as floats (onnxruntime: extra option QuantizeBias=False)",
        lint="QDQ105",
    ),
    Cause(
        name="scale-count",
        area="format",
        pattern=r"scale and zero point must have the same volume|[Nn]umber of scales|scale.{0,40}must (?:be equal to|match).{0,40}channel"
        r"|numScales ==|Cannot have scale with no coefficients|^(?!.*pluginV2Runner).*[sS]cales\.size\(\) == 1|K == scale\.count\(\)"
        r"|quantize_scale_node: (?:shift|scale|power) weights has count",
        meaning="the number of scales or zero points does not match the tensor, or another layer needs one scale for all channels",
        fix=f"{LINT} names the pair; {FIXED} corrects the axis if possible",
        lint="QDQ116",
    ),
    Cause(
        name="scale-axis-unset",
        area="format",
        pattern=r"unexpected negative axis",
        meaning="a scale with one dimension counts as one scale per channel, and the program that adds this Q or DQ set no axis for it",
        fix="set the layer's axis to the dimension of the channels, or give a scale without dimensions (one for the tensor)",
    ),
    Cause(
        name="scale-shape",
        area="format",
        pattern=r"mis-matched Scale shape and dimension at axis",
        meaning="the compiler of regions (Myelin) finds another number of scales than the tensor has values along the axis",
        fix=f"{LINT} checks scales and axes; if it finds nothing, build with a newer release (users report this of 8.0)",
        releases="8",
    ),
    Cause(
        name="scale-mode",
        area="format",
        pattern=r"ScaleMode is illegal",
        meaning="the shape of a scale fits no mode of quantization: one value, one value for each channel of the axis, or blocks",
        fix="give the Q or DQ one scale, or as many as its axis has channels, and set the axis; if a converter made the network (Torch-TensorRT), "
        f"use another release of it; in an ONNX file {LINT} names the pair",
        lint="QDQ116",
    ),
    Cause(
        name="integer-operator",
        area="parser",
        pattern=r"No importer registered for op: (?:QLinear\w+|ConvInteger|MatMulInteger|DynamicQuantize\w+|QGemm|QAttention)\b",
        meaning="the model computes with integers itself, as onnxruntime's QOperator format and dynamic quantization do; TensorRT reads "
        "Q/DQ around float operators only",
        fix=f"{FIXED} writes most of them as Q/DQ; or quantize again (onnxruntime: QuantFormat.QDQ)",
        lint="QDQ107",
    ),
    Cause(
        name="weights-not-folded",
        area="format",
        pattern=r"Could not fuse 2nd input \(kernel weights\)|reportWeightlessTwoInputConvolutionAsError",
        meaning="a quantized convolution reads weights that the builder cannot fold: the Q or DQ of the weight has another reader or is an output, an operator is between them"
        ", or the activation has no Q/DQ",
        fix=f"give each convolution a weight with a separate Q/DQ and nothing between the two, and put Q/DQ on the activation; {LINT} names "
        f"the node, {FIXED} corrects most",
        releases="8",
    ),
    Cause(
        name="constant-use",
        area="format",
        pattern=r"only allowed before DQ|invalid weights type of Int8",
        meaning="a node other than DequantizeLinear reads an INT8 constant",
        fix="every INT8 constant must feed a DequantizeLinear and have at least one dimension",
        lint="QDQ106",
    ),
    Cause(
        name="uint8",
        area="format",
        pattern=r"does not support UINT8 types for intermediate|UINT8 zero_point only on DLA|input has type UInt8 but must have type"
        r"|Unsupported data type for the Cast operator",
        meaning="quantized tensors cannot be UINT8, except on DLA; nor can a Cast write UINT8, as torch.fx leaves it between Q and DQ",
        fix=f"{FIXED} turns UINT8 into INT8 with zero point 0",
        lint="QDQ101",
    ),
    Cause(
        name="quantized-type",
        area="format",
        pattern=r"FP4 quantization\. The specified quantization type is|specifies an (?:invalid|unsupported) data type"
        r"|Mismatch between attribute output_dtype|QuantizeLayer can only output|Blockwise quantization is implemented for",
        meaning="the type of a Q or DQ node is not one that TensorRT quantizes to: INT8, FP8 (E4M3), INT4 or FP4",
        fix=f"quantize to one of these; {LINT} names the node",
        lint="QDQ105",
    ),
)
"""Causes about files and quantization parameters that the parser refuses."""

FORMATS = (
    Cause(
        name="fp4-double-scale",
        area="format",
        pattern=r"Scale input must be a scalar|double quantization scale factor must be a scalar",
        meaning="the second scale of NVFP4 (one number for the whole tensor) has more than one value",
        fix="store it as a scalar (shape []): export with one global scale per tensor",
        releases="10.8 and newer, RTX",
        lint="QDQ198",
    ),
    Cause(
        name="fp4-scale-constant",
        area="format",
        pattern=r"[Dd]ouble quantization scale factor(?: \(global scale factor\) must be a build-time constant| is required to be constant)"
        r"|Scale input must be an initializer",
        meaning="the second scale of NVFP4 is computed at run time, but must be a constant",
        fix="calibrate it and store it in the model: export with a static global scale",
        releases="10.8 and newer, RTX",
    ),
    Cause(
        name="block-dimension",
        area="format",
        pattern=r"\[DYNAMIC_QUANTIZE\].*dimension",
        meaning="a tensor is quantized in blocks (NVFP4, MXFP8) along a dimension that the builder does not know",
        fix="export the model with a fixed size of the last dimension (a Reshape to -1 hides the size); the other dimensions may stay free",
        releases="10.8 and newer",
    ),
    Cause(
        name="fp4-scale-type",
        area="format",
        pattern=r"[Dd]ouble.?quant\w*.?scale.{0,80}(?:FP32|kFLOAT|[Ff]loat32|of type Float|type)",
        meaning="the second scale of NVFP4 has neither type FP32 nor the type of the input",
        fix="store it as FP32",
        releases="10.8 and newer, RTX",
    ),
    Cause(
        name="blocked-axis",
        area="format",
        pattern=r"blocked axis should be known at build time|requires the axis dimension to be known at build time"
        r"|does not support inferred dimensions",
        meaning="the blocked axis (the last of the input) has a dynamic size, but must be known at build time",
        fix="fix this dimension in the model; the weight of the MatMul that reads it has the same size",
        releases="10.8 and newer, RTX",
        lint="QDQ199",
    ),
    Cause(
        name="block-shape",
        area="format",
        pattern=r"blocked axis to be one of the two|Only block_size(?: == 16| 32) is supported|block_shape must be"
        r"|must have scalar block_size|blocking dimension must be the last or second to last",
        meaning="blocks have a size or axis without kernels; supported are 16 values (FP4) or 32 (MXFP8) along one of the last two axes",
        fix="quantize in blocks of that size along the summed axis",
        releases="10.8 and newer, RTX",
        lint="QDQ110",
    ),
    Cause(
        name="no-fp4",
        area="format",
        pattern=r"HW-specific datatypes?: .*fp4",
        meaning="the model contains FP4, but a target GPU does not support it",
        fix="build for sm120 or newer, or quantize to FP8 (sm89 or newer) or INT8",
        lint="QDQ117",
    ),
    Cause(
        name="no-int4",
        area="format",
        pattern=r"HW-specific datatypes?: int4",
        meaning="the model contains INT4, but a target GPU does not support it",
        fix="build for sm80 or newer, or store the weights as INT8",
        lint="QDQ109",
    ),
    Cause(
        name="odd-int4",
        area="format",
        pattern=r"odd tensor volume|tensors with an odd last dimension",
        meaning="a weight holds an odd number of 4-bit values",
        fix="pad its columns to an even number, store it as INT8, or keep it float",
        lint="QDQ109",
    ),
    Cause(
        name="no-fp8",
        area="format",
        pattern=r"HW-specific datatypes?: fp8|fp8 .{0,40}not supported|require hardware with FP8 support|Unsupported SM version for FP8(?! block)"
        r"|FP8 FMHA cannot be enabled (?:except )?on\b",
        meaning="the model contains FP8, but a target GPU does not support it",
        fix="build for sm89 or newer, or quantize to INT8",
        lint="QDQ111",
    ),
    Cause(
        name="fp8-attention",
        area="format",
        pattern=r"FP8 (?:context )?FMHA cannot be enabled because|FMHA kernels are not found",
        meaning="the attention plug-in of TensorRT-LLM has no fused kernel for this model (its head size, mask or positions), on this GPU",
        fix="turn FP8 attention off (trtllm-build --use_fp8_context_fmha disable), quantize again without an FP8 KV cache if it stays on, or "
        "use a newer TensorRT-LLM",
    ),
    Cause(
        name="int8-and-fp8",
        area="format",
        pattern=r"INT8 and FP8 mixed precision is allowed only",
        meaning="the model contains both INT8 and FP8, which needs a strongly typed network on this GPU",
        fix="build with --stronglyTyped, or quantize to one of the two formats",
        releases="10 and newer",
    ),
)
"""Causes about FP4, FP8 and INT4."""

TYPING = (
    Cause(
        name="precision-flag",
        area="typing",
        pattern=r"condition: !config\.getFlag\(BuilderFlag::k(?:FP16|BF16|INT8|FP8|INT4)|getFlag\(BuilderFlag::k\w+\)\. .*[Ss]trongly",
        meaning="a precision flag was set for a strongly typed network, whose types are those of the model",
        fix=f"remove --fp16, --bf16, --int8, --fp8 and --best; put the types into the model ({CONVERT}, Q/DQ)",
        releases="8.6 and newer",
    ),
    Cause(
        name="set-type",
        area="typing",
        pattern=r"cannot be called for a strongly typed network|!mNetwork->usingStronglyTyped\(\)",
        meaning="the program sets a layer's precision or output type, but a strongly typed network does not allow this",
        fix="put a Cast into the model (or use add_cast), or build a weakly typed network (up to TensorRT 10)",
        releases="8.6 and newer",
    ),
    Cause(
        name="int8-meets-float",
        area="typing",
        pattern=r"element type \((?:u?int[48]|fp[48]|float[48]\w*)\) differs from|differs from [^\n]{0,40}element type \((?:u?int[48]|fp[48])\)",
        meaning="a quantized tensor reaches a float operation without DequantizeLinear, because the builder moved or fused the DQ before this operation",
        fix=f"add a separate DQ before the float operation, or remove the Q/DQ pair before the operation ({Command('repair', ('MODEL', '--float', 'NODE', '--out', 'repaired.onnx'))}); "
        "if the node was added after quantization, add it before quantization, or keep the old output as well; or build with another release",
        releases="8.6 and newer",
    ),
    Cause(
        name="types-differ",
        area="typing",
        pattern=r"first input has type \w+ but second input has type|element type \(\w+\) differs from|incompatible input types"
        r"|must (?:all )?(?:be|have)\b.{0,60}\bsame (?:input |data )?types?\b|Operands must have same type|requires all \w+ inputs same type"
        r"|types? for .{0,60}must be identical|Type mismatch detected for a strongly typed network|Found mixed input types"
        r"|[Ii]nput types .{0,60}(?:differ|do not match|must match)|stronglyTyped \|\| \(common\w+Type ==",
        meaning="two inputs of a layer have different types (Half and Float, or Int32 and Float), and a strongly typed network does not insert casts",
        fix=f"add a Cast before the layer in the export of the model, or convert the whole model with {CONVERT}",
        releases="8.6 and newer; always in 11 and RTX",
        lint="QDQ112",
    ),
    Cause(
        name="operator-type",
        area="parser",
        pattern=r"(?:[Ii]nputs?|[Dd]ata type) must be (?:either |of type )?\w+(?: or \w+)?\. +(?:[Ii]nput |[Dd]ata )?type is \w+|Unsupported ONNX data type: |does not support the given operator with the given input",
        meaning="this release does not take a tensor of this type as an input of the model, or of this operator",
        fix=f"export it in a type that the text accepts (FP16 or FP32 instead of BF16; FP32 or INT32 instead of UINT8, INT64 or FP64), add a Cast before it, or build with a newer release; {CONVERT} writes FP16",
    ),
    Cause(
        name="elementwise-type",
        area="typing",
        pattern=r"elementwise inputs must not be|requires bool I/O|does not support operator \w+ with",
        meaning="this layer does not compute in the type of its input (Int32 or Bool)",
        fix="cast its input to float in the model, or use a newer release",
        releases="5 to 10",
    ),
    Cause(
        name="infer-type",
        area="typing",
        pattern=r"Could not infer output types for operation|No matching rules found for input operand types",
        meaning="the compiler of regions (Myelin) has no rule for an operation with these types: for a Q or DQ, values and scale differ in "
        "type, for example if a weakly typed build makes the scale FP16 and keeps the values FP32",
        fix="build with --stronglyTyped and without --fp16, --int8 and --fp8; if the build is strongly typed already, use one type for values and scales"
        f" ({CONVERT}), or build with another release of TensorRT",
        releases="10",
    ),
    Cause(
        name="conv-float16",
        area="typing",
        pattern=r"No low-precision conv kernel available for this strongly-typed",
        meaning="in a strongly typed network, a quantized convolution with FP16 input and output has no kernel",
        fix="keep the convolution and its Q/DQ in FP32, with Casts around them",
        releases="11, RTX",
    ),
)
"""Causes about strong typing."""

SHAPES = (
    Cause(
        name="no-profile",
        area="shape",
        pattern=r"no optimization profile|optimization profile is missing|dynamic shape info not set",
        meaning="an input has dynamic dimensions, or shapes are computed from its values, and the build options contain neither shapes nor values",
        fix=_SHAPES,
    ),
    Cause(
        name="profile-of-fixed",
        area="shape",
        pattern=r"static dimensions that don't match k(?:MIN|OPT|MAX)|Dimension mismatch\s+for tensor .{0,200}profile",
        meaning="the given shapes differ from a dimension that is fixed in the model: ranges are possible only for dynamic dimensions",
        fix="pass the fixed size, or export the model with this dimension dynamic (torch.onnx.export: dynamic_axes, or dynamic_shapes)",
    ),
    Cause(
        name="profile-unset",
        area="shape",
        pattern=r"setDimensions.{0,300}(?:x >= 0|\[i\] >= 0|dims\.d\b)|Explicit config dims is invalid",
        meaning="the program passed a negative dimension for an input: the model has a dynamic dimension there (-1), and the program must pass its size",
        fix="pass minimum, optimum and maximum sizes of each dynamic dimension (DeepStream: infer-dims=C;H;W in the nvinfer configuration), or export the model with fixed shapes",
    ),
    Cause(
        name="profile-order",
        area="shape",
        pattern=r"Required optimization profile is invalid|must satisfy MIN ?<= ?OPT ?<= ?MAX|kMIN.{0,20}<=.{0,20}kOPT",
        meaning="a dimension of the given shapes is not ordered: minimum, optimum, maximum",
        fix=_SHAPES,
    ),
    Cause(
        name="empty-axis",
        area="shape",
        pattern=r"gather from an empty axis",
        meaning="with the shapes of this build an axis has no elements: a dynamic input is too short (size 1 if the build options contain no shapes)",
        fix=_SHAPES,
    ),
    Cause(
        name="nested-if",
        area="shape",
        pattern=r"graphScope\.cpp.*kUNDEFINED",
        meaning="the builder fails on an If inside a branch of another If",
        fix=DECIDE_IF,
    ),
    Cause(
        name="loop-count",
        area="shape",
        pattern=r"infer the shape of scan output .* since no trip limit was set",
        meaning="the Loop has no trip count, and collects a value in every iteration: the number of iterations is unknown at build time",
        fix="export the loop with a trip count, its first input; recurrent layers, as LSTM or GRU nodes",
    ),
    Cause(
        name="if-ranks",
        area="shape",
        pattern=r"Must have inputs with equal ranks when condition is not a build-time constant",
        meaning="the branches of an If have different ranks",
        fix=DECIDE_IF,
    ),
    Cause(
        name="profile-inside",
        area="shape",
        pattern=r"values for profile \d+ violate shape constraints",
        meaning="with the sizes of the profile, shapes inside the network do not fit each other: the export fixed one size, or the network needs multiples of its stride",
        fix="pass the sizes of the export, or multiples of the stride; for other sizes export the model again with dynamic axes, and without sizes as constants near the "
        "node that the text names",
    ),
    Cause(
        name="reshape-inferred",
        area="shape",
        pattern=r"at most one dimension may be inferred|more than one -1 wildcard",
        meaning="a Reshape has more than one size that is to be computed (-1): the export made several axes dynamic, or a tool replaced the batch by -1",
        fix="export the model again with the wanted axes dynamic instead of editing its shapes; in the code of the model give all sizes of the view or reshape but one as numbers",
    ),
    Cause(
        name="run-time-shape",
        area="shape",
        pattern=r"cannot be used to compute a shape tensor|shape tensor must have \d or \d reshape dimensions|Dynamic shapes are not equal for slice|must be a build.time constant|Assertion !isInFlight"
        r"|must be an initializer|should be a constant tensor|does not support dynamic axes|Failed to convert .{0,40} to a scalar|Dynamic shape for scale tensor|does not work for dynamically shaped|Cannot infer squeeze dimensions|inputs\.at\(\d+\)\.is_weights\(\)|scales_input\.is_weights\(\)",
        meaning="a shape or parameter is computed at run time, but the builder needs a constant",
        fix="simplify the model (constant folding: polygraphy surgeon sanitize --fold-constants), or export it with fixed shapes",
    ),
    Cause(
        name="shape-input",
        area="shape",
        pattern=r"missing values for shape input tensor|[Ss]hape input tensor .{0,80}(?:values|profile)",
        meaning="shapes in the network are computed from the values of this input, and the build options do not contain the range of these values",
        fix="pass the range of values together with the shapes (trtexec: --minShapes=NAME:1, --optShapes, --maxShapes; code: profile.set_shape_input), or make the input a "
        f"constant; {Command('run', ('MODEL', '--samples', 'DATA'))} reads them from the samples, with the builders rtx and trt",
    ),
    Cause(
        name="weight-count",
        area="shape",
        pattern=r"count of \d+ weights in|weights has count \d+ but \d+ was expected|number of kernel weights does not match|failed validation",
        meaning="a layer's weights do not match the shape of its input, or its channels and groups",
        fix="export the model again; in code, check the shapes of kernel and bias, and that weights and settings (number of classes) belong to one model; groups of a transposed convolution: a newer release",
    ),
    Cause(
        name="shapes-differ",
        area="shape",
        pattern=r"dimension of input0 = \S+ and .{1,60} but must match|must have (?:the )?same (?:dimensions|number of dimensions|rank|shape|extra dimension|leading dimension|extent)"
        r"|rank must be same|must be equal for concatenation|must be conformable|follow broadcast rules|condition input tensor must be the same",
        meaning="the shapes of a layer's inputs do not match",
        fix="check the shapes that were given for the inputs (a network that halves its sizes needs multiples of its stride), and export the model again with shape "
        "inference",
    ),
    Cause(
        name="too-many-values",
        area="shape",
        pattern=r"size <= std::numeric_limits<int(?:32_t)?>::max\(\)|volume.{0,40}exceeds? .{0,20}(?:2\^31|INT32|int32)",
        meaning="a tensor would have 2^31 values or more, which this release does not support",
        fix="build for a smaller batch or smaller shapes (--maxShapes), or with a newer release",
    ),
    Cause(
        name="range-check",
        area="shape",
        pattern=r"vector::_M_range_check|std::out_of_range|invalid (?:vector subscript|string position)",
        meaning="the builder or parser reads beyond the end of an internal list: a fault of this release, often with an unusual shape or axis",
        fix=_NEWER,
    ),
)
"""Causes about shapes and control flow."""

PLUGINS = (
    Cause(
        name="plugin-scale",
        area="plugin",
        pattern=r"pluginV2Runner.{0,200}scales\.size\(\) == 1",
        meaning="a plug-in reads or writes INT8, but the tensor has no scale, or has one per channel instead of a single one",
        fix="calibrate the tensors at the plug-in, or change the plug-in so that it accepts floats (supportsFormatCombination); earlier lines name the tensors without "
        "a scale",
    ),
    Cause(
        name="plugin-missing",
        area="plugin",
        pattern=r"[Pp]lugin not found|could not find plugin|was not found in (?:the )?plugin registry|IPluginCreator(?:Interface)? not found|Cannot find plugin:"
        r"|plugin creator .*not found|failed to load \w+ plugin",
        meaning="TensorRT does not know this operator, and no plug-in of this name is registered",
        fix="if it is a plug-in, load its library (trtexec --plugins=FILE or --staticPlugins=FILE; in code init_libnvinfer_plugins); if not, build with a newer "
        "release, replace the operator, or cut the model before it",
        lint="QDQ149",
        variants=(
            Wording(
                program="triton",
                fix="start Triton with the library of the plug-in: LD_PRELOAD=LIBRARY tritonserver ..., or --backend-config=tensorrt,plugins=LIBRARY; the library "
                "must be compiled for the TensorRT of the container",
            ),
            Wording(
                program="tensorrt-llm",
                fix="load the plug-ins of TensorRT-LLM before the engine: import tensorrt_llm (Python), or the library libnvinfer_plugin_tensorrt_llm.so, of the release that "
                "built the engine",
            ),
            Wording(
                program="onnxruntime",
                meaning="TensorRT does not know this operator: onnxruntime assigns the operator to its next provider (CUDA or CPU), so the session may still run",
                fix="nothing to do if the session runs; if it does not, read the later errors, and add CUDAExecutionProvider to the list of providers; to keep "
                "the operator in TensorRT, load its plug-in (trt_extra_plugin_lib_paths), or replace the operator",
            ),
        ),
    ),
    Cause(
        name="plugin-interface",
        area="plugin",
        pattern=r"getCreators could not be loaded|does not contain getCreators|contains invalid plugin creator|getPluginCreators could not be loaded|kPLUGIN_V3 .*(?:not|un)supported|IPluginV3.*(?:fail|error)",
        meaning="the plug-in library was written for another interface of plug-ins than this release loads",
        fix="build the library against this release, and export getCreators (IPluginV3) as it asks for",
        releases="10 and newer",
    ),
    Cause(
        name="plugin-format",
        area="plugin",
        pattern=r"no supported formats|could not find any supported formats|candidateRequirements\.empty\(\)(?! failed\. All of)|format not recognized or not supported|getSupportedFormats: 0",
        meaning="a plug-in or layer accepts none of the types and formats that the build and its neighbours allow",
        fix="allow the type that the plug-in supports (FP16 or FP32 around it); check its supportsFormatCombination; without a plug-in, allow FP16 as well as INT8 (--fp16)",
        variants=(
            Wording(
                types=r"^(?!.*INT8)",
                io="int8",
                meaning="a plug-in or layer accepts none of the types and formats that the build allows: an input or output is INT8 "
                "(--inputIOFormats, --outputIOFormats), but the build does not allow INT8",
                fix="allow INT8 (--int8), or pass this tensor to the plug-in as INT32 or float; then check its supportsFormatCombination",
            ),
        ),
    ),
    Cause(
        name="plugin-bytes",
        area="plugin",
        pattern=r"Assertion .d == a \+ length",
        meaning="a plug-in reads more or fewer bytes than the engine holds for it: its library is not the one with which the engine was built",
        fix="build the engine again with this library of the plug-in, or load the library from the build",
    ),
    Cause(
        name="unknown-operator",
        area="parser",
        pattern=r"No importer registered for op",
        meaning="the parser does not know this operator and found no plug-in for it",
        fix="load the plug-in library, or replace the operator",
    ),
)
"""Causes about plug-ins."""
