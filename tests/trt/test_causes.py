"""One table of causes: a text gets the right cause, and in a chain the line that decides does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from qdqtool.cli.app import run as cli
from qdqtool.core.wording import Command, actions
from qdqtool.io.text import text_of
from qdqtool.pages import coded_plugins
from qdqtool.trt.causes import (
    CAUSES,
    QUESTIONS,
    RANKS,
    by_name,
    cause_of,
    decisive,
    list_shown_by,
    node_of,
    question_of,
)
from tests import models
from tests.backends import graphs
from tests.buildlog import small
from tests.shared import SHARED, shared

SAID = {
    "RuntimeError: Method: zork was not overriden. Please provide an implementation for this method.": "calibrator-method",
    "CUDA error: cudaErrorInvalidDeviceFunction": "no-kernel-image",
    "1: [zorkAllocator.cpp::deallocate::9] Error Code 1: Cuda Runtime (invalid argument)": "freed-late",
    "AttributeError: 'tensorrt.tensorrt.Builder' object has no attribute 'int8_calibrator'": "python-api",
    "3: [executionContext.cpp::enqueueInternal::9] Error Code 3: API Usage Error (Parameter check failed, condition: bindings[x] || nullBindingOK": "no-address",
    "1: [zork.cpp::quib::9] Error Code 1: Cuda Runtime (operation not permitted when stream is capturing)": "graph-capture",
    "CUDA failure 906: operation would make the legacy stream depend on a capturing blocking stream": "graph-capture",
    "1: [virtualMemoryBuffer.cpp::resizePhysical::9] Error Code 1: Cuda Driver (invalid argument)": "memory-mapping",
    "[TensorRT-LLM][ERROR] Assertion failed: sizeof(T) <= remaining_buffer_size": "other-version",
    "unable to find 'libtriton_zork.so' for model 'a', searched: /models/a": "triton-backend",
    "TensorRT EP could not deserialize engine from binary data": "engine-not-loaded",
    "KeyError: 'lm_head.weight'": "llm-shared-embedding",
    "KeyError: 'transformer.layers.3.mlp.zork.activation_scaling_factor'": "llm-tensors",
    "RuntimeError: Provided tensor names are different from those expected by the engine.": "llm-tensors",
    "AssertionError: When use_explicit_typing is enabled, only torch.float32 is allowed in the enabled_precisions": "torch-explicit-types",
    "AttributeError: module 'tensorrt' has no attribute 'IInt8EntropyCalibrator2'": "python-api-11",
    "AttributeError: type object 'BuilderFlag' has no attribute 'FP16'": "python-api-11",
    "AttributeError: type object 'BuilderFlag' has no attribute 'FP8'": "python-exception",
    "In node 7 with name: z and operator: Zork (importZork): INVALID_NODE: Inputs must be either FLOAT or FLOAT16. Input type is BF16.": "operator-type",
    "RuntimeError: Unknown type zork encountered in graph lowering. This type is not supported in ONNX export.": "torch-script-type",
    "[TensorRT-LLM][ERROR] Assertion failed: Number of bytes for rows and cols must be a multiple of 32. However, num_rows_bytes = 8 and num_col_bytes = 6": (
        "llm-split"
    ),
    "Error Code 3: API Usage Error (Parameter check failed at: builderConfig.cpp::canRunOnDLA::382, condition: dlaEngineCount > 0": "dla-absent",
    "4: Timing cache header mismatch:Incoming ITimingCache: UUID = GPU-1": "timing-cache",
    "1: [resizeRunner.cpp::execute::89] Error Code 1: Cuda Runtime (invalid resource handle)": "other-context",
    "Error Code 6: API Usage Error (Unable to load library: libnvinfer_lean.so.10: cannot open shared object file)": "builder-library",
    'activation(7): error: identifier "inff" is undefined': "infinite-factor",
    "pointwise(3): error: expected a zork": "nvrtc",
    "Error Code 3: API Usage Error (Parameter check failed, condition: mContext.profileObliviousBindings.at(i) || getPtrOrNull(mOutputAllocators, i))": (
        "no-address"
    ),
    "ERROR:root:Exporting to ONNX failed. zork": "onnx-export",
    "ERROR: [Torch-TensorRT] - Unsupported operator: aten::zork(Tensor a) -> (Tensor)": "torch-unsupported",
    "Unable to process subgraph input type of at::kLong/at::kDouble": "torch-long",
    "IOptimizationProfile::setDimensions: Error Code 3: API Usage Error (Parameter check failed, condition: std::all_of(dims.d, [](int32_t x) noexcept { return x >= 0; }))": (
        "profile-unset"
    ),
    "Cuda Error in initializeCommonContext: 4": "cuda-start",
    "Input tensor a has static dimensions that don't match kMIN dimensions in profile index 1.": "profile-of-fixed",
    "IConcatenationLayer c: axis 2 dimensions must be equal for concatenation on axis 1. Dimensions are 255 and 254.": "shapes-differ",
    "W trt_engine_op.cc:295] Failed to execute engine, retrying with native segment for a": "tftrt-native",
    "trt_engine_op.cc:812] Starting calibration thread on device 0, Calibration Resource @ 0x7f5e": "tftrt-calibrates",
    "Half2 support requested on hardware without native FP16 support, performance will be negatively affected.": "no-fast-fp16",
    "[nvmRegionOptimizer.cpp::forceToUseNvmIO::175] Error Code 2: Internal Error (Assertion isDLA(n->backend) failed. )": "dla-io",
    "terminate called after throwing an instance of 'std::bad_alloc'": "host-memory",
    "Cannot create DLA engine, 0 not available": "dla-absent",
    "Triton: failed to create repo server, triton_err_str:Internal, err_msg:failed to stat file /zork": "triton-repository",
    "TensorrtExecutionProvider::GetSupportedList graph_build.Resolve().IsOK() was false.": "ort-subgraph",
    "coreReadArchive.h(271) - Serialization Error in readZork:0(Type mismatch)": "other-version",
    "requested fasted precision for device GPU without providing valid calibrator, disabling INT8": "jetson-no-calibrator",
    "Error Code 2: Internal Error ((Unnamed Layer* 2) [Quantize]: unexpected negative axis)": "scale-axis-unset",
    'Assertion failed: convertDtype(onnxType, &dtype) && "Unsupported data type for the Cast operator!"': "uint8",
    "Error Code 4: Internal Error (BuilderFlag::kDIRECT_IO specified but no conformant implementation exists)": "direct-io",
    "Error Code 1: Myelin (Quantize op a{ForeignNode[b...c]} has mis-matched Scale shape and dimension at axis)": "scale-shape",
    "  - quantized::conv2d.new(Tensor qx, float output_scale) -> Tensor": "torch-quantized",
    "2: [calibrator.cpp::calibrateEngine::1235] Error Code 2: Internal Error (Assertion context->executeV2(bindings.data()) failed. )": (
        "calibration-buffer"
    ),
    "Unexpected exception KTM assertion failure: /_src/ktm/src/caskTimingModels/convolutionTimingModel.cpp:65  shader != nullptr": "timing-model",
    "Error during shape inference of\na = mul(b, c), name=/enc/a\nError is:\nInput 0's element type (int8) differs from input 1's element type (": (
        "int8-meets-float"
    ),
    "Error Code 9: Internal Error (/Zork_TRT: could not find any supported formats consistent with input/output data types)": "plugin-format",
    'Assertion `0 && "OpenCV is required to run INT8 calibrator\\n"\' failed.': "calibrator-left-out",
    "CUDA kernel not found in registries for Op type: QLinearConv node name: a": "ort-qlinear",
    "Node(s) placed on [CPUExecutionProvider]. Number of nodes: 1": "ort-placed",
    "2026-06-17T04:35:53Z Building TRT engine: models/det.onnx -> det.trt": "program-builds",
    "Error Code 4: API Usage Error (Optimization profile 0 is missing values for shape input tensor first_padding.)": "shape-input",
    "[checkSanity.cpp::checkLinks::218] Error Code 2: Internal Error (Assertion item.second != nullptr failed. region should have been removed "
    "from Graph::regions)": "regions-left",
    "PolygraphyException: Invalid Engine. Please ensure the engine was built correctly": "no-engine",
    "CUBLAS failure 3: the library was not initialized": "cudnn",
    "Error Code 1: Cublas (Could not initialize cublasLt. Please check CUDA installation.)": "cudnn",
    "Misc Error in buildEngine: -1 (Could not find tensor a/b in tensorScales.)": "no-scales",
    "TypeError: a bytes-like object is required, not 'NoneType'": "no-engine",
    "Error Code 4: Internal Error (Int8 precision has been set for a layer or layer output, but int8 is not configured in the builder)": (
        "int8-not-allowed"
    ),
    "Setting dynamic range is only allowed when there are no Q/DQ layers in the Network.": "ranges-and-qdq",
    "Assertion `builder->platformHasFastInt8()' failed.": "no-fast-int8",
    'Skipping tactic 0x0000000000000000 due to Myelin error: tensor "x" has an unitialized dimension.': "myelin-error",
    'Assertion size >= bsize && "Mismatch between allocated memory size and expected size of serialized engine."\' failed.': "other-version",
    "TllmXqaJit runtime error in tllmXqaJitCreateAndCompileProgram(&program, &context): NVRTC": "llm-xqa",
    "Requested amount of memory (18446744065119617096 bytes) could not be allocated.": "impossible-size",
    "Cuda Error in cuCalibrator::absTensorMax: 11 (invalid argument)": "calibration-buffer",
    "1: [calibrator.cpp::add::793] Error Code 1: Cuda Runtime (an illegal memory access was encountered)": "calibration-buffer",
    "2: [quantization.cpp::DynamicRange::65] Error Code 2: Internal Error (Assertion min_ <= max_ failed.)": "range-inverted",
    "setDefaultDeviceType was called but no layer in the network can run on DLA.": "dla-none",
    "Serialization assertion header.magicTag == kEXPECTED_MAGIC_TAG failed.Trying to load an engine created with incompatible serialization "
    "version (1795 != 1953657958).": "engine-with-metadata",
    "Error Code 4: API Usage Error ([DYNAMIC_QUANTIZE]-[op]-[q_dynamic_quantize]: the last dimension is -1)": "block-dimension",
    "OSError: Unable to open file (unable to open file: name = 'calib_data.h5', errno = 2)": "file-missing",
    "WARNING: ../b.cpp:1 Deserialize engine failed because file path: /a/b.engine open error": "deepstream-no-engine",
    "Error Code 9: API Usage Error (Target GPU SM 120 is not supported by this TensorRT release.)": "gpu-too-new",
    "IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error (Target GPU SM 72 is not supported by this TensorRT release.)": (
        "gpu-of-jetson"
    ),
    "Assertion failed: Failed to deserialize cuda engine. (/src/runtime.cpp:1)": "engine-not-loaded",
    "unable to load plan file to auto complete config": "engine-not-loaded",
    "[ERROR] [zork_container-1]: process has died [pid 12, exit code -11, cmd 'zork']": "program-crash",
    "zork exited with code 137": "killed",
    "Could not locate zork.dll. Please make sure it is in your library path!": "library-missing",
    "[TensorRT-LLM][ERROR] Assertion failed: Failed: MPI error /a.cpp:211 '6' (/a.cpp:211)": "mpi",
    "zork: b.cpp:3: virtual void nvinfer1::task::Zork::execute(const nvinfer1::A&): Assertion `zork(a)' failed.": "kernel-check",
    "INVALID_ARGUMENT: Cannot deserialize with an empty memory buffer.": "engine-empty",
    "9 supported operations detected. Skipping this subgraph, since min_block_size was detected to be 12": "torch-small-part",
    "Error Code 2: Internal Error (Engine generation failed because all backend strategies failed.)": "echo",
    "1: [caskUtils.cpp::trtSmToCask::147] Error Code 1: Internal Error (Unsupported SM: 0x809)": "gpu-too-new",
    "The engine plan file is not compatible with this version of TensorRT, expecting library version 5.1.2 got 5.1.5, please rebuild.": (
        "other-version"
    ),
    "The engine plan file is generated on an incompatible device, expecting compute 7.5 got compute 8.6, please rebuild.": "other-device",
    "Cannot deserialize engine with lean runtime since IRuntime::getEngineHostCodeAllowed() is false.": "lean-runtime",
    '[8] Assertion failed: shiftIsAllZeros(zeroPoint) && "TRT only supports symmetric quantization"': "zero-point",
    "INVALID_NODE: Assertion failed: Scale input must be a scalar": "fp4-double-scale",
    "The double quantization scale factor must be a scalar.": "fp4-double-scale",
    "The input extent in the blocked axis should be known at build time. axis = 1": "blocked-axis",
    "Quantized constant (/b) is only allowed before DQ or PLUGIN_V2 or kPLUGIN_V3 node.": "constant-use",
    "API Usage Error (Networks with FP8 Q/DQ layers require hardware with FP8 support.)": "no-fp8",
    "Assertion failed: FP8 FMHA cannot be enabled except on Ada or Hopper or Blackwell Arch. ": "no-fp8",
    "API Usage Error (INT8 and FP8 mixed precision is allowed only when building network with kSTRONGLY_TYPED mode on Blackwell+ platforms.)": (
        "int8-and-fp8"
    ),
    "Parameter check failed, condition: !config.getFlag(BuilderFlag::kFP16).  In createNetworkBuildConfig": "precision-flag",
    "INetworkLayer::setOutputType cannot be called for a strongly typed network.": "set-type",
    "Input 0's element type (half) differs from input 1's element type (float).": "types-differ",
    "IElementWiseLayer with inputs a and b: first input has type Half but second input has type Float.": "types-differ",
    "(Unnamed Layer* 728) [ElementWise]: operation PROD has incompatible input types Float and Bool": "types-differ",
    "add: ElementWiseOperation SUM must have same input types. But they are of types Half and Float. In validateTypes": "types-differ",
    "The blocking dimension must be the last or second to last dimension In validateQuantizationHelper": "block-shape",
    "IElementWiseLayer must have inputs with same dimensions or follow broadcast rules. Input dimensions were": "shapes-differ",
    "dq: input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8.": "int32-bias",
    "Reshape_1: IShuffleLayer applied to shape tensor must have 0 or 1 reshape dimensions: dimensions were [-1,2]": "run-time-shape",
    "3: getPluginCreator could not find plugin: Round version: 1": "plugin-missing",
    "Error Code 3: API Usage Error (SymbolAddress for getCreators could not be loaded, check function name)": "plugin-interface",
    "Assertion !n->candidateRequirements.empty() failed. no supported formats": "plugin-format",
    "[nvdlaUtils.cpp::submit::198] Error Code 1: DLA (Failure to submit program to DLA engine.)": "dla-compile",
    "Default DLA is enabled but layer a is not supported on DLA and falling back to GPU is not enabled.": "dla-no-fallback",
    "nvrtc_compile.cpp:1118: CHECK(success) failed. NVRTC Compilation failure": "nvrtc",
    "MyelinCheckException: compile resulted in null program": "myelin-check",
    "Could not find any implementation for node a due to insufficient workspace. See verbose log": "workspace-short",
    "Tactic Device request: 143MB Available: 112MB. Device memory is insufficient to use tactic.": "device-memory",
    "Skipping tactic 0 due to insuficient memory on requested size of 29147520 detected for tactic 0.": "tactic-memory",
    "Could not find any implementation for node {ForeignNode[a...b]}.": "no-kernel",
    "WARNING: INT8 not supported by platform. Trying FP16 mode.": "deepstream-no-int8",
    "INT8 calibration file not specified. Trying FP16 mode.": "deepstream-no-calibration",
    "Tensor x is uniformly zero; network calibration failed.": "calibration-zero",
    "libnvinfer.so.8: cannot open shared object file: No such file or directory": "ort-library",
    "Falling back to ['CUDAExecutionProvider', 'CPUExecutionProvider'] and retrying.": "ort-fallback",
    "2: [pluginV2Runner.cpp::getInputHostScale::88] Error Code 2: Internal Error (Assertion scales.size() == 1 failed. )": (
        "plugin-scale"
    ),
    "Assertion failed: scales.size() == 1": "scale-count",
    "Calibrator is not being used. Users must provide dynamic range for all tensors that are not Int32 or Bool.": "ranges-set",
    "[pointWiseV2Builder.cpp::toExpr::325] Error Code 2: Internal Error (Assertion outScales.size() == 1 failed. )": "scale-count",
    "QuantizeLinear_7_quantize_scale_node: shift weights has count 64 but 3 was expected": "scale-count",
    "In node 8 (importDequantizeLinear): INVALID_NODE: Assertion failed: K == scale.count()": "scale-count",
    "In node 1 (parseGraph): UNSUPPORTED_NODE: No importer registered for op: QLinearConv": "integer-operator",
    "Error Code 2: Internal Error (Conv_9 + Relu_11: Could not fuse 2nd input (kernel weights) of CONVOLUTION)": "weights-not-folded",
    "Could not infer output types for operation: 3: quantize: a-(fp8[8,8]) | b-(f32[8,8]), No matching rules found for input": "infer-type",
    "Error Code 2: Internal Error (Assertion size <= std::numeric_limits<int32_t>::max() failed. )": "too-many-values",
    "../builder/cudnnBuilder2.cpp (1757) - Assertion Error in operator(): 0 (et.region->getType() == RegionType::kNVM)": "dla-compile",
    "Node: /a/Relu cannot run in INT8 mode due to missing scale and zero point. This node will not run on DLA.": "dla-no-scale",
    "2: [weightConvertors.cpp::quantizeBiasCommon::337] Error Code 2: Internal Error (Assertion getter(i) != 0 failed. )": (
        "scale-of-zero"
    ),
    "Assertion failed: Expected length (33) != real length (37). This is often caused by using different TensorRT-LLM": "other-version",
    "kPREFER_PRECISION_CONSTRAINTS cannot be set if kOBEY_PRECISION_CONSTRAINTS is set.": "two-constraints",
    "AssertionError: Unsupported AWQ quantized checkpoint format": "llm-checkpoint",
    "IExecutionContext::enqueueV3: Error Code 1: Myelin ([executor.cpp:myelinGraphLoad:836] Called with an already loaded binary graph.": (
        "context-shared"
    ),
    "IExecutionContext::enqueueV3: Error Code 1: Myelin ([exec_instruction.cpp:exec:1087] CUDA error 700 launching __myl_Mul kernel.)": (
        "engine-crash"
    ),
    "1: [convBaseRunner.cpp::execute::295] Error Code 1: Cask (Cask convolution execution)": "engine-crash",
    "[8] Assertion failed: inputs.at(1).is_weights()": "run-time-shape",
    "1: Unexpected exception _Map_base::at": "calibration-lookup",
    "1: Unexpected exception invalid unordered_map<K, T> key": "calibration-lookup",
    "Error Code 4: API Usage Error (IGatherLayer n: n: cannot do non-empty gather from an empty axis In processCheck at": "empty-axis",
    "Assertion failed: FP8 FMHA cannot be enabled because Context FMHA is not supported. (a.cpp:2404)": "fp8-attention",
    "Skipping tactic 0xfe80445f7bb61a99 due to exception Assertion vol == 1 failed.": "tactic-skipped",
    "[layersImpl.cpp::validateQuantizationHelper::362] Error Code 2: API Usage Error ((Unnamed Layer* 6) [Quantize]: ScaleMode is illegal.)": (
        "scale-mode"
    ),
    "due to exception [autotuner.cpp:get_best_tactics:1520] Autotuner: no tactics to implement operation: 7: corrltn: a'-(bf16[1])": (
        "no-operation-kernel"
    ),
    "Error[2]: Assertion !layerImpls.empty() failed. /a/Atan has no runners that implement it": "no-runner",
    "Failed to create instance: unexpected datatype TYPE_INT64 for inference input 'x', expecting TYPE_INT32 for a_0_0": "triton-config",
    "[weightConvertors.cpp::combineInOutScale::369] Error Code 2: Internal Error (Assertion p.quantizations.isOutputSet(0) failed. )": (
        "output-without-scale"
    ),
    "[builder.cpp::nvinfer1::builder::createCaskKernelLibraryImpl::157] Error Code 2: Internal Error (Assertion validateCaskKLibSize(b) failed. )": (
        "builder-library"
    ),
    "Parameter check failed at: runtime/api/executionContext.cpp::setInputShape::2309, condition: satisfyProfile Runtime dimension": (
        "outside-profile"
    ),
    "condition: engineDims.d[i] == dims.d[i]. Static dimension mismatch while setting input shape for x.": "static-shape",
    "Following input(s) has no associated shape profiles provided: /rpn/Squeeze_2_output_0": "ort-profiles",
    'Error loading "C:/x/onnxruntime_providers_tensorrt.dll" which depends on "nvinfer_10.dll" which is missing.': "ort-library",
    "unable to find backend library for backend '${triton_backend}', try specifying runtime": "placeholder",
    "AttributeError: 'tensorrt_bindings.tensorrt.Builder' object has no attribute 'build_engine'": "python-api",
    "RuntimeError: TensorRT does not currently build wheels for Tegra systems": "no-wheel",
    "CUDA error cudaErrorUnsupportedPtxVersion:the provided PTX was compiled with an unsupported toolchain.": "driver-old",
    "Failed to read image for calibration": "calibration-images",
    "Status Message: TensorRT EP failed to create engine from network.": "ort-engine",
    "1: [runner.cpp::executeMyelinGraph::682] Error Code 1: Myelin ([cask.cpp:exec:972] Platform (Cuda) error)": "engine-crash",
    "Assertion failed: f != 0 && (f & (f - 1)) == 0": "internal-check",
    "[8] Assertion failed: f != 0": "parser-check",
    "In node 8 (importX): INVALID_NODE: Assertion failed: f != 0": "parser-check",
    "Assertion failed: tensors.count(input_name)": "no-producer",
    "Engine could not be created from network": "echo",
    "2: [builder.cpp::buildSerializedNetwork::636] Error Code 2: Internal Error (Assertion engine != nullptr failed. )": "echo",
}
"""Texts from logs and threads -> the cause."""

_CODES = {
    2: "internal-check",
    3: "wrong-call",
    4: "does-not-fit",
    5: "allocation",
    6: "initialization",
    7: "run-check",
    8: "run-check",
    9: "internal-check",
    10: "unsupported-here",
}
"""TensorRT's error codes -> the class of an error that has no cause of its own."""

_LOUD = re.compile(
    r"(?:\[[\d/:-]+\] )?(?:\[TRT\] )?(?:\[[EF]\]|\[TensorRT\] ERROR:|ERROR: \[TRT\]:?|\[ERROR\])(?: \[TRT\])? ?(?P<text>.*\S)"
)


@pytest.mark.parametrize(("text", "name"), SAID.items())
def test_an_error_text_has_its_cause(text: str, name: str) -> None:
    found = cause_of(text)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(("code", "name"), _CODES.items())
@pytest.mark.parametrize(
    "form", ["Error Code {0}: {1} ({2})", "Error[{0}]: [x.cpp::f::7] Error Code {0}: {1} ({2})"]
)
def test_an_unseen_text_gets_the_answer_of_its_class(code: int, name: str, form: str) -> None:
    kind = "API Usage Error" if code in (3, 4) else "Internal Error"
    said = form.format(code, kind, "Assertion mFuture.zorks == 3 failed. zorks and quibs differ")
    found = cause_of(f"[frobnicator.cpp::frobnicate::12] {said}" if form.startswith("Error Code") else said)
    assert found is not None
    assert (found.name, found.rank) == (name, "vague")
    for part in (
        "mFuture.zorks == 3",
        "zorks and quibs differ",
        "frobnicate" if form.startswith("Error Code") else "in f",
    ):
        assert part in found.meaning, "the answer tells what the text names"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            'While parsing node number 25 [Zork -> "/y"]:\nERROR: ModelImporter.cpp:195 In function parseGraph:\n[6] Invalid Node - /z\n/z: at least 5 dimensions',
            ("/y", "(Zork)", "at least 5 dimensions"),
        ),
        (
            'In node 8 with name: /a/b and operator: Zork (importZork): INVALID_NODE: Assertion failed: (n > 2) && "few zorks"',
            ("/a/b", "(Zork)", "few zorks", "(n > 2)"),
        ),
        (
            "Error Code 3: API Usage Error (Parameter check failed, condition: mB.at(i) != nullptr. Address is not set for x. In enqueueV3 at a:1)",
            ("Address is not set for x", "`mB.at(i) != nullptr`"),
        ),
        (
            "MyelinCheckException: hfc.cpp:120: CHECK(false) failed. target 'x' has no kind.",
            ("target 'x' has no kind",),
        ),
        (
            "IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error (IZorkLayer a/b: few zorks In check at a.cpp:1 In f at b.cpp:2)",
            ("do not fit together", "node a/b", "few zorks"),
        ),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no Zork", ("NOT_IMPLEMENTED : no Zork",)),
        ("Traceback (most recent call last):\n  File\nKeyError: 'zork'", ("KeyError: 'zork'",)),
        ("Cuda Error in zork: 999 (cudaErrorUnknown)", ("cudaErrorUnknown",)),
        (
            "Error Code 2: Internal Error (Assertion a == params.nbOutputMaps failed. )",
            ("values per output channel",),
        ),
        (
            "[weightConvertors.cpp::zork::9] Error Code 2: Internal Error (Assertion a failed. )",
            ("the type of a constant",),
        ),
    ],
)
def test_a_general_answer_tells_what_the_text_names(text: str, parts: tuple[str, ...]) -> None:
    found = cause_of(text)
    assert found is not None
    for part in parts:
        assert part in found.meaning
    bare = cause_of("Error Code 2: Internal Error (Assertion a == b failed. )")
    assert bare is not None
    assert bare.meaning.endswith("the text does not say which layer it concerns or the reason")


def test_an_error_of_no_class_is_unknown_and_no_error_is_nothing() -> None:
    found = cause_of("the zork failed")
    assert found is not None
    assert found.rank == "unknown"
    assert cause_of("all went well") is None


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("why is INT8 slower than FP16", "not-faster"),
        ("QAT model does not accelerate: INT8 has the same latency as fp16", "not-faster"),
        ("which layers fell back to FP32", "which-precision"),
        ("how to check precision of each layer after quantize to INT8", "which-precision"),
        ("Q/DQ was not fused", "not-fused"),
        ("accuracy is gone after INT8", "accuracy-lost"),
        ("poor mAP after calibration", "accuracy-lost"),
        ("why does the engine take 30 minutes", "long-build"),
        ("hello world", ""),
    ],
)
def test_a_question_is_answered_by_a_command(
    words: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    question = question_of(words)
    assert (question.name if question else "") == name
    assert cli(["explain", words]) == (0 if name else 2)
    assert name in capfd.readouterr().out


def test_no_error_text_is_a_question() -> None:
    for text, name in SAID.items():
        assert cli(["explain", text]) == 0, name


def test_causes_are_complete_and_their_names_unique() -> None:
    assert len({cause.name for cause in CAUSES}) == len(CAUSES)
    for cause in CAUSES:
        assert cause.meaning, cause.name
        assert cause.fix, cause.name
        assert cause.rank in RANKS
        assert not cause.lint or cause.lint in coded_plugins()
        assert {by_name(name).rank for name in cause.before} <= {"exact"}


def test_the_end_of_a_chain_gives_way_to_the_line_that_decides() -> None:
    end = "Could not find any implementation for node a."
    memory = "Tactic Device request: 143MB Available: 112MB. Device memory is insufficient to use tactic."
    compiler = "Skipping tactic 0x0 due to exception nvrtc_compile.cpp:940: CHECK(false) failed. NVRTC Compilation failure"
    for before, name, at in (
        ([], "no-kernel", 0),
        ([memory], "device-memory", 0),
        ([compiler], "nvrtc", 0),
        ([compiler, memory], "nvrtc", 0),
    ):
        found = decisive([*before, end, "Engine set up failed"])
        assert found is not None
        assert (found[0], found[1].name) == (at, name)
    assert decisive([end, memory]) == (0, by_name("no-kernel")), "what comes after decides nothing"
    assert decisive(["a text of the future"]) is None


@pytest.mark.parametrize(
    ("text", "node"),
    [
        (
            "Could not find any implementation for node {ForeignNode[a.b, c...d]}.)",
            "{ForeignNode[a.b, c...d]}",
        ),
        ("In node 1042 with name: /m/Q and operator: TRT_FP4DynamicQuantize (f): INVALID_NODE: x", "/m/Q"),
        ("Error during shape inference of\na_out = mul(b, c), name=/enc/a\nError is:\nInput 0", "/enc/a"),
        ("nothing", ""),
    ],
)
def test_the_node_of_an_error(text: str, node: str) -> None:
    assert node_of(text) == node


def _errors(path: Path) -> Iterator[str]:
    for line in text_of(path).splitlines():
        if found := _LOUD.fullmatch(line):
            yield found["text"]


@pytest.mark.shared
def test_every_error_of_the_shared_logs_has_a_cause() -> None:
    shared("corpus/MANIFEST.tsv")
    logs = [
        path for kind in ("corpus/*log/*", "corpus/rtx/*log*", "cases/**/*.log") for path in SHARED.glob(kind)
    ]
    texts = {re.sub(r"\d+", "#", text): text for path in logs for text in _errors(path)}
    assert len(texts) > 40
    assert [text for text in texts.values() if cause_of(text) is None] == []


def _typed() -> list[Command]:
    """Every command in the fixes of causes and of their variants."""
    fixes = [
        fix for cause in (*CAUSES, *QUESTIONS) for fix in (cause.fix, *(one.fix for one in cause.variants))
    ]
    return sorted({one for fix in fixes for one in actions(fix) if isinstance(one, Command)}, key=str)


@pytest.mark.parametrize("command", _typed(), ids=str)
def test_a_command_in_a_fix_is_typed_as_it_is_printed(
    command: Command, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models.save(graphs.quantized_conv(), tmp_path)
    assert cli(["cache", "from-qdq", str(model), "--trt", "8.6.1", "--out", str(tmp_path / "CACHE")]) == 0
    (tmp_path / "script.py").write_text("import tensorrt\n")
    (tmp_path / "LOG").write_text("[E] Error Code 2: Internal Error (Assertion a failed. )\n")
    files = {word: str(tmp_path / word) for word in ("CACHE", "LOG", "repaired.onnx", "FP16")}
    files |= dict.fromkeys(("MODEL", "QUANTIZED"), str(model))
    files["FLOAT_MODEL"] = str(models.save(graphs.conv_relu(), tmp_path, "float.onnx"))
    files |= {
        "SCRIPT": str(tmp_path / "script.py"),
        "TABLE": files["CACHE"],
        "DATA": "random:2",
        "NODE": "conv",
    }
    (tmp_path / "LAYERS").write_text(small.trtexec())
    files["LAYERS"] = str(tmp_path / "LAYERS")
    files["BUILD"] = str(tmp_path / "build")
    if command.name == "run":
        # It quantizes the float model, and writes below the folder where it runs.
        monkeypatch.chdir(tmp_path)
        files["MODEL"] = files["FLOAT_MODEL"]
    words = [files.get(word, word) for word in command.arguments]
    assert not [word for word in words if word.isupper()]
    capfd.readouterr()
    code, told = cli([command.name, *words]), capfd.readouterr().err
    if "trtexec" in words and not shutil.which("trtexec"):
        assert (code, "trtexec" in told) == (3, True), told
    else:
        assert code in {0, 1}, told


def test_what_lint_shows_before_a_build_is_found_by_its_code() -> None:
    assert {cause.name for cause in list_shown_by("qdq198")} == {"fp4-double-scale"}
    assert list_shown_by("") == ()
    for cause in CAUSES:
        assert (cause in list_shown_by(cause.lint)) is bool(cause.lint)
