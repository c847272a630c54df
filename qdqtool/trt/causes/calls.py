"""Causes in options of trtexec and in calls of the API: wrong names, shapes, orders and releases."""

from __future__ import annotations

from qdqtool.core.causes import Cause
from qdqtool.core.wording import Command
from qdqtool.trt.causes.classes import CONVERT

_NAMES = "polygraphy inspect model MODEL lists the inputs of a model or engine"

CALLS = (
    Cause(
        name="option-of-types",
        area="typing",
        pattern=r"Unknown option: --(?:fp16|bf16|int8|fp8|int4|best|calib|precisionConstraints|layerPrecisions|layerOutputTypes|stronglyTyped)\b",
        meaning="this trtexec has no option for types: from TensorRT 11 on, and in TensorRT for RTX, the model itself decides (older releases lack newer types)",
        fix=f"remove the option; FP16: {CONVERT}; INT8: Q/DQ in the model, {Command('run', ('MODEL', '--samples', 'DATA'))}",
        releases="11, RTX",
    ),
    Cause(
        name="option-unknown",
        area="host",
        pattern=r"Unknown option: ",
        meaning="this release of trtexec does not have the option",
        fix="remove it, or use its new name: --explicitBatch (always on), --workspace=N (--memPoolSize=workspace:N), --buildOnly (--skipInference), --plugins "
        "(--staticPlugins), --minTiming (removed); trtexec --help lists the options",
    ),
    Cause(
        name="options-conflict",
        area="host",
        pattern=r"not allowed for DLA standalone|--\w+ cannot be used with --|requires --\w+ to be|Incompatible load and save engine|Cannot specify both --|are mutually exclusive|is not supported without DLA cores",
        meaning="two options exclude each other, or one needs another; the text names them",
        fix="remove one of the options, or add the missing one",
    ),
    Cause(
        name="input-name",
        area="shape",
        pattern=r"Cannot find input tensor with name|Invalid tensor names found in --|Tensor: \S+ does not exist in the model",
        meaning="the options name a tensor that is not an input of the model or engine",
        fix=f"use the names of the inputs: {_NAMES}",
    ),
    Cause(
        name="shapes-of-static",
        area="shape",
        pattern=r"Static model does not take explicit shapes",
        meaning="all inputs of the model have fixed shapes, so it takes no --shapes, --minShapes, --optShapes or --maxShapes",
        fix="remove these options; for other shapes or a larger batch, export the model with dynamic axes",
    ),
    Cause(
        name="shape-overridden",
        area="shape",
        pattern=r"but no shapes were provided\. Automatically overriding shape to",
        meaning="the build options contain no shape for a dynamic input, so the builder uses 1 for each unknown dimension, and the engine accepts only this shape",
        fix=f"pass --minShapes, --optShapes and --maxShapes with the name in this text (shapes for another name are ignored); {_NAMES}",
        effect="warns",
    ),
    Cause(
        name="profile-number",
        area="shape",
        pattern=r"Selected profile index \d+ exceeds|Failed to set optimization profile|Set optimization profile failed|Shapes without --profile are not allowed",
        meaning="the number of an optimization profile does not exist in this build or engine",
        fix="number the profiles of the build from 0 (trtexec --profile=0 --minShapes=... --profile=1 ...), and select one of these numbers",
    ),
    Cause(
        name="destroy-order",
        area="running",
        pattern=r"(?:mEngineCounter|mObjectCounter)\.use_count\(\) == 1|Destroying a \w+ (?:object )?before destroying",
        meaning="the program deletes an object of TensorRT before the objects that it made; engines and results of this run are not at fault",
        fix="delete in this order: execution context, engine, runtime; network, configuration, builder (TensorRT 8 and newer: delete instead of destroy())",
    ),
    Cause(
        name="parse-ignored",
        area="parser",
        pattern=r"condition: index < getNb(?:Inputs|Outputs|Layers)\(\)",
        meaning="the network has fewer inputs, outputs or layers than the program asks for: usually the parser failed before, and the program continued; or it is another model",
        fix="check the result of parser.parse and print its errors; compare the inputs and outputs of the model with the program",
    ),
    Cause(
        name="parsed-twice",
        area="parser",
        pattern=r"[Pp]arse was called with a non-empty network definition",
        meaning="the program parses a model into a network that already has layers",
        fix="create a new network (create_network) for each parse",
    ),
    Cause(
        name="implicit-batch",
        area="shape",
        pattern=r"requires network without implicit batch dimension|[Ii]mplicit batch (?:mode|dimension)\w* (?:is|are) (?:not|no longer) supported|!mHasImplicitBatchDimension",
        meaning="the network has an implicit batch dimension, which this layer, plug-in or release does not support",
        fix="create the network with the flag EXPLICIT_BATCH; models of TAO or in UFF: use the ONNX export of the model, or the converter of the TensorRT that runs it",
        releases="6 to 9",
    ),
    Cause(
        name="batch-size",
        area="running",
        pattern=r"batchSize > 0 && batchSize <=|[bB]atch ?[sS]ize was: \d+, but engine max batch size was",
        meaning="the batch size is zero, or above the largest batch of the engine",
        fix="pass a batch between 1 and the maximum of the build, or build for a larger one (setMaxBatchSize); an engine without an implicit batch runs with enqueueV3, "
        "or executeV2",
        releases="4 to 9",
    ),
    Cause(
        name="tensor-unknown",
        area="running",
        pattern=r"(?:bindIndex|bindingIndex|profileObliviousIndex) (?:>=|<)|is not a valid (?:input|output|I/O) tensor|[Gg]iven invalid tensor name|isTensorNameValid",
        meaning="the program asks for a tensor by a name or number that the engine does not have",
        fix="use the names of this engine (trtexec --loadEngine=FILE --verbose lists them); an engine of another export has other names, and an engine that was not loaded has none",
    ),
    Cause(
        name="weights-type",
        area="format",
        pattern=r"Cannot implicitly convert to tensorrt\.Weights|Unsupported numpy data type",
        meaning="the program gives TensorRT a constant in a type that it has no weights of, such as INT64 or FP64",
        fix="convert the array before (.astype(numpy.float32) or numpy.int32); a converter such as torch2trt: model.eval() first, and no 64-bit tensors in the model",
    ),
    Cause(
        name="release-lacks",
        area="host",
        pattern=r"is not available on TensorRT version \d",
        meaning="this release of TensorRT does not have the feature that the text names",
        fix="install a newer TensorRT, or remove the option",
    ),
    Cause(
        name="rtx-options",
        area="typing",
        pattern=r"(?:not supported|only supported) with USE_TENSORRT_RTX=1",
        meaning="TensorRT for RTX takes the types from the model, and has neither precision flags, calibrators nor DLA",
        fix=f"remove the option; FP16: {CONVERT}; INT8: {Command('run', ('MODEL', '--samples', 'DATA'))}",
        releases="RTX",
    ),
    Cause(
        name="source-release",
        area="host",
        pattern=r"has no member (?:named )?['\"\u2018]\w+|['\u2018]\w+['\u2019] is not a member of ['\u2018]nvinfer1|looser (?:throw|exception) specif|invalid new-expression of abstract class type '\w*(?:[Pp]lugin|Logger|Calibrator)|NvInfer\w+\.h: No such file",
        meaning="the C++ source of the program was written for another release of TensorRT than the headers that the compiler finds",
        fix="use the version of the program for this TensorRT, or install the release that the program names; "
        f"{Command('migrate', ('SCRIPT',))} lists what changed",
        fault="machine",
    ),
    Cause(
        name="linker",
        area="host",
        pattern=r"\bld: cannot find -l\w+|Could NOT find (?:TensorRT|TENSORRT|CUDNN|CUDA)|TENSORRT_\w+ could not be found",
        meaning="the linker or CMake does not find a library: its development package is missing, or its folder is not in the search path",
        fix="install the development package (libnvinfer-dev and related), or pass the folder (-L, TensorRT_ROOT); libraries of parsers that newer releases removed "
        "(nvparsers, nvcaffe_parser): remove them from the build file",
        fault="machine",
    ),
)
"""Causes in options and calls."""
