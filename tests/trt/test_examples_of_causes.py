"""Every cause has an example text, and two exact causes claim one text only where their order is known."""

from __future__ import annotations

import itertools
import re

import pytest

from qdqtool.trt.causes import CAUSES, UNNAMED, cause_of
from tests.trt.test_causes import SAID

EXAMPLES = {
    # Options of trtexec and calls of the API.
    "Unknown option: --int8 ": "option-of-types",
    "Unknown option: --zork 7": "option-unknown",
    "Cannot specify both --zork and --quib.": "options-conflict",
    'Cannot find input tensor with name "zork" in the engine bindings!': "input-name",
    "Static model does not take explicit shapes since the shapes are fixed": "shapes-of-static",
    "Dynamic dimensions required for input: zork, but no shapes were provided. Automatically overriding shape to: 1x3x1x1": "shape-overridden",
    "Selected profile index 7 exceeds the number of profiles": "profile-number",
    "Error Code 3: API Usage Error (Parameter check failed at: z.cpp::~Runtime::9, condition: mEngineCounter.use_count() == 1. Destroying a runtime": "destroy-order",
    "[network.cpp::getOutput::9] Error Code 3: API Usage Error (Parameter check failed, condition: index < getNbOutputs()": "parse-ignored",
    "Parse was called with a non-empty network definition": "parsed-twice",
    "ERROR: [TRT]: IPluginV2Zork requires network without implicit batch dimension": "implicit-batch",
    "Note: Batch size was: 0, but engine max batch size was: 1": "batch-size",
    "[!] zork_budget is not available on TensorRT version 8.6.1.": "release-lacks",
    "[!] Zorks (fp16, int8, bf16, fp8) are not supported with USE_TENSORRT_RTX=1.": "rtx-options",
    "error: 'class nvinfer1::IZork' has no member named 'quib'": "source-release",
    "/usr/bin/ld: cannot find -lnvzork": "linker",
    # Tools that export and quantize.
    "RuntimeError: ONNX export failed: Couldn't export Python operator ZorkQuantFunction": "export-fake-quant",
    "UnsupportedOperatorError: Exporting the operator 'aten::fused_moving_avg_obs_fake_quant' failed": "export-observer",
    "RuntimeError: Exporting the operator quantize_per_tensor to ONNX opset version 10 is not supported.": "export-converted",
    "No ONNX function found for <OpOverload(op='aten.fake_quantize_zork')>": "export-dynamo",
    "Exporting the operator zork to ONNX opset version 9 is not supported. Support for this operator was added in version 13, try": "export-opset",
    "AssertionError: Quantizer has not been calibrated": "quantizer-no-data",
    "AssertionError: Model must not be quantized!": "quantized-already",
    "AssertionError: zork_shape[0] must be divisible by 2": "odd-rows",
    "Unknown model type ZorkForCausalLM. Continue exporting...": "modelopt-model",
    "    assert not np_y_scale.shape or w32.shape[-1] == np_y_scale.shape[0]\nAssertionError": "modelopt-weights",
    "RuntimeError: Unable to find data type for weight_name='/zork/MatMul_output_0'": "ort-quantizer-shapes",
    "WARNING:root:Please consider to run pre-processing before quantization.": "ort-quantizer-hint",
    "TypeError: Zork.__init__() got an unexpected keyword argument 'quib'": "python-releases",
    "trtexec: command not found": "program-missing",
    "Exception: Incomplete symbolic shape inference": "ort-symbolic",
    "Type Error: Type parameter (T) of Zork bound to different types (tensor(float) and tensor(int64)": "node-types-differ",
    "ValidationError: Node (Zork_1) has input size 2 not in range [min=1, max=1].": "opset-of-node",
    "OnnxGraphSurgeonException: Cycle detected in graph!": "names-twice",
    "AttributeError: module 'onnx.helper' has no attribute 'zork'": "onnx-release",
    "RuntimeError: Unable to cast Python instance to C++ type": "calibrator-type",
    "AssertionError: Number of bits must be 8 for INT8 ONNX export.": "quantizer-form",
    # Programs that load, copy, serve and export.
    "instance group zork_0 of model zork has kind KIND_GPU but no GPUs are available": "triton-gpu",
    "Poll failed for model directory 'zork': failed to read text proto from /zork/config.pbtxt": "triton-text",
    "failed to specify the dimensions of all input bindings": "triton-shapes",
    "Poll failed for model directory 'zork': output 'QUIB' for ensemble 'zork' is not written": "triton-ensemble",
    "Failed to initialize Python stub: AttributeError: can't set attribute 'zork'": "triton-python",
    "Tokenizer class ZorkTokenizer does not exist or is not currently imported.": "remote-code",
    "KeyError: 'architecture'": "llm-not-converted",
    "[TensorRT-LLM][ERROR] Assertion failed: When KV cache block reuse is set, model has to be built with paged context FMHA support": "llm-paged-context",
    "Assertion failed: Unsupported architecture (/zork/fmhaRunner.cpp:89)": "llm-fmha-gpu",
    "Assertion failed: Both encoder and decoder model paths are empty (/zork.cc:535)": "llm-paths",
    "[TensorRT-LLM][ERROR] Cannot process new request: Prompt length (5056) exceeds maximum sequence length (2048)": "llm-arguments",
    "pycuda._driver.LogicError: cuMemcpyHtoDAsync failed: invalid argument": "copy-size",
    "PyCUDA ERROR: The context stack was not empty upon module cleanup.": "context-left",
    "AttributeError: __enter__": "with-object",
    "AttributeError: 'NoneType' object has no attribute 'set_binding_shape'": "no-engine",
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices": "torch-devices",
    "AssertionError: Torch not compiled with CUDA enabled": "torch-no-gpu",
    "Specified provider 'ZorkExecutionProvider' is not in available provider names.": "ort-no-provider",
    "INVALID_ARGUMENT : Got invalid dimensions for input: zork for the following indices": "ort-input",
    "TensorRT input: 504 has no shape specified. Please run shape inference on the onnx model first.": "ort-no-shapes",
    "Unknown type name '__torch__.torch.classes.tensorrt.Engine':": "torch-runtime-missing",
    "AttributeError: 'Tensor' object has no attribute '_trt'": "torch2trt-converter",
    "Could not load the library of tensorrt plugins.             Because the file does not exist:": "mmdeploy-plugins",
    "[UID = 1]: Backend has maxBatchSize 1 whereas 2 has been requested": "deepstream-engine",
    "ERROR from zork: Internal data stream error.": "deepstream-stream",
    "AttributeError: module 'numpy' has no attribute 'bool'.": "numpy-release",
    "src/cpp/cuda.hpp:14:10: fatal error: cuda.h: No such file or directory": "cuda-headers",
    "fatal error: zork/quib.hpp: No such file or directory": "header-missing",
    "MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD with errorcode 1.": "mpi-abort",
    "nvcc fatal   : Unsupported gpu architecture 'compute_75'": "nvcc-architecture",
    "ERROR: Failed building wheel for zork": "pip-failed",
    "ValueError: Message onnx.ModelProto exceeds maximum protobuf size of 2GB: 2215158447": "model-size",
    "[ShapeInferenceError] Inferred shape and existing shape differ in rank: (0) vs (1)": "inferred-shapes",
    "torch._dynamo.exc.UserError: Constraints violated (batch)!": "export-dynamic",
    "TracerWarning: Converting a tensor to a Python boolean might cause the trace to be incorrect.": "export-trace",
    "ONNX: simplifier failure: FLOAT8E4M3FN": "simplifier",
    "[ERROR] Exception caught in write_calibration_cache(): [Errno 2] No such file or directory: 'zork'": "calibrator-cache",
    "YoloLayerPlugin(const void*, size_t): Assertion `d == a + length' failed.": "plugin-bytes",
    "error: \u2018class nvinfer1::IZork\u2019 has no member named \u2018quib\u2019": "source-release",
    "ImportError: libnvinfer.so.8: cannot open shared object file: No such file or directory": "library-missing",
    "RuntimeError: Exporting the operator grid_sampler to ONNX opset version 12 is not supported": "onnx-export",
    "ValueError: negative dimensions are not allowed": "size-unset",
    "ValueError: could not broadcast input array from shape (7,) into shape (9,)": "copy-size",
    "(Unnamed Layer * 480) [Shuffle]: at most one dimension may be inferred": "reshape-inferred",
    "zork (Output: quib): kernel weights has count 96 but 2304 was expected": "weight-count",
    "zork: ../src/zork.cpp:51: nvinfer1::IZork* quib(): Assertion `zork_1' failed.": "plugin-check",
    "vapoursynth.Error: operator (): bits per sample mismatch": "vapoursynth-input",
    "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)": "nccl",
    "[E] Error[1]: [cudlaUtils.cpp::submit::95] Error Code 1: DLA (Failed to submit program to DLA engine.)": "dla-run",
    "TypeError: deserialize_cuda_engine(): incompatible function arguments.": "no-engine",
    # The machine.
    "no CUDA-capable device is detected": "no-gpu",
    "Error Code 2: Internal Error (Assertion upperBound != 0 failed. Unknown embedded device detected.": "jetson-unknown",
    "NvMapMemAllocInternalTagged: 1075072515 error 12": "jetson-memory",
    "Failed to initialize NVML": "no-nvml",
    "ImportError: libzork.so.8: undefined symbol: getZork": "mixed-libraries",
    "PermissionError: [Errno 13] Permission denied: '/zork'": "cannot-write",
    "OSError: [Errno 28] No space left on device": "disk-full",
    "an illegal memory access was encountered": "kernel-crash",
    "device-side assert triggered": "device-assert",
    "Cannot register the library as plugin creator of zork": "plugin-twice",
    "Failed to create a refitter.": "not-refittable",
    "Unable to create execution context for inference stream 0.": "no-context",
    "out of memory": "out-of-memory",
    # The model.
    "Error Code 4: Shape Error (zork: reshape changes volume. Reshaping [1,128] to [1,64].)": "reshape-volume",
    "Double quantization scale factor is required to be constant": "fp4-scale-constant",
    "double quant scale must be FP32": "fp4-scale-type",
    "HW-specific datatypes: fp4": "no-fp4",
    "HW-specific datatypes: int4": "no-int4",
    "not supported for tensors with an odd last dimension.": "odd-int4",
    "a name is not UTF-8": "bad-name",
    "Could not open file zork.onnx": "not-onnx",
    "Failed to read weights from external file: zork.data": "missing-weights",
    "Found unsupported datatype (16) when importing initializer": "constant-type",
    "In node -1 (importZork): UNSUPPORTED_NODE: Assertion failed: convertOnnxWeights(zork, &weights, ctx)": "constant-read",
    "[7] Assertion failed: _importer_ctx.tensors().at(output.name()).is_tensor()": "constant-output",
    "UffParser: Validator error: zork: Unsupported operation _Zork_TRT": "uff-operator",
    "UffParser: Could not read buffer.": "uff-file",
    "Found different number of output tensors in If conditional subgraphs!": "if-outputs",
    'While parsing node number 7 [LayerNormalization -> "/zork"]:': "layer-norm-old",
    "Scale coefficients must all be positive": "bad-scale",
    "Attribute output_dtype specifies an invalid data type 7": "quantized-type",
    "zork: elementwise inputs must not be Int32": "elementwise-type",
    "No low-precision conv kernel available for this strongly-typed conv": "conv-float16",
    "Network has dynamic inputs, but no optimization profile has been defined": "no-profile",
    "Required optimization profile is invalid": "profile-order",
    "[graphScope.cpp::f::9] Assertion kUNDEFINED failed": "nested-if",
    "cannot infer the shape of scan output zork since no trip limit was set": "loop-count",
    "Must have inputs with equal ranks when condition is not a build-time constant": "if-ranks",
    "kMIN values for profile 0 violate shape constraints: zork": "profile-inside",
    "count of 64 weights in kernel, but 128 was expected": "weight-count",
    "vector::_M_range_check: __n (which is 4)": "range-check",
    "No importer registered for op: Zork": "unknown-operator",
    # DLA and calibration.
    "NVMEDIA_DLA :  528, ERROR: load from memory failed.": "dla-load",
    "Assertion `context.dlaContext->getDLACore() >= 0 && zork' failed.": "dla-core-unset",
    "NVMEDIA_DLA : 1599, ERROR: registerTensorBuffer failed": "dla-buffers",
    "engine capability is EngineCapability::kDLA_STANDALONE": "dla-standalone",
    "Validation failed for DLA layer: zork. Switching to GPU fallback.": "dla-layer",
    "File does not exist : /zork/calib.table": "no-table",
    "scale for zork not found in calibration cache": "calibration-of-other",
    "Calibration failure occurred with no scaling factors detected.": "calibration-failed",
    "autodetected range of [inf, 7] is not finite": "range-not-finite",
    "FAILED | Mismatched outputs: ['zork']": "outputs-differ",
    "Missing scale and zero-point for tensor zork": "scale-missing",
    "Rejecting some int8 implementation of layer zork due to missing int8 scales": "int8-rejected",
    "No implementation of layer zork obeys the requested constraints": "not-obeyed",
    # Programs around the builder.
    "Internal: autofill failed for model 'zork': configuration specified max-batch 4 but TensorRT engine only supports max-batch 0;": "triton-batch",
    "input byte size mismatch for input 'zork' for model 'm'. Expected 4, got 8": "triton-request",
    "[TensorRTNode] Dynamic non-batch dimensions are not supported for input tensor: zork": "isaac-dynamic",
    "Empty engine_file_path, aborting": "isaac-parameters",
    "FileNotFoundError: plugin library not found: build/libNvInfer_edgellm_plugin.so": "edge-plugin",
    "NvDsInfer Error: NVDSINFER_CUSTOM_LIB_FAILED": "deepstream-library",
    "** ERROR: <gst_nvinfer_parse_config_file:1303>: failed": "deepstream-config",
    "ERROR: Could not find output layer in bbox parsing": "deepstream-outputs",
    "WARNING - TRT conversion failed on the subgraph. See trace above.": "torch-subgraph",
    "TypeError: Provided an unsupported data type as an input data type (support: bool), got: torch.zork": "torch-input-type",
    "[TensorRT-LLM][ERROR] maxTokensInPagedKvCache must be large enough": "llm-kv-memory",
    "RuntimeError: Unsupported SM version for FP8 block scaling GEMM": "fp8-blocks",
    "Cannot determine size of FP4 data type": "llm-fp4-runtime",
    "Invalid TensorRT EP option: trt_zork": "ort-option",
    "TensorRT EP failed to set INT8 dynamic range.": "ort-dynamic-range",
    "EP_FAIL : TensorRT EP could not open shared library from ": "ort-decryption",
    "[TensorRTRTX] Inference failed: Dynamic input shapes not provided": "ort-rtx-shapes",
    "ValueError: you are required to explicitly set the providers parameter": "ort-providers",
    "FP16 not supported by platform. Using FP32 mode.": "deepstream-no-fp16",
    "Unsupported model IR version: 11, max supported IR version: 10": "ort-newer-file",
    "TensorRT EP: node zork is not supported by TensorRT, fallback": "ort-partition",
    "The following operations will run in PyTorch": "torch-fallback",
    "INT8 export requires a missing 'data' arg for calibration.": "ultralytics-calibration",
    "ModuleNotFoundError: No module named 'zork'": "python-module",
    "Engine building failed, please check the error log.": "llm-build",
    "[TensorRT-LLM][ERROR] Assertion failed: No valid SQ GEMM tactic": "llm-gemm",
    "- 7 weights are affected by this issue: Detected subnormal values.": "weights-fp16",
    "Running layernorm after self-attention in FP16 may cause overflow.": "normalization-fp16",
    "Using an engine plan file across different models of devices is not recommended": "engine-of-like-device",
    "TensorRT was linked against cuZork 11.6.3 but loaded cuZork 11.4.1": "library-linked",
    "Warning: Large KV activation detected: 0.69": "kv-outliers",
    "BuilderFlag::kTF32 is set but hardware does not support TF32. Disabling TF32.": "harmless",
    "INFO: Use deserialized engine model: /zork_int8.engine": "deepstream-reuses",
    "LogicError: zork failed: invalid device context - no currently active context?": "other-context",
    "ValueError: No valid profile found. Generate an engine for zork.": "outside-profile",
    "[TRT] [W] Cache result detected as invalid for node: /zork, LayerImpl: CaskZork": "harmless",
    "ZorkAttentionPlugin: enqueue failed: no kernel": "edge-attention",
    "ValidationError: 1 validation error for ZorkArgs": "llm-arguments",
    "DLA requests all profiles have same min, max, and opt value.": "dla-shapes",
    "Parameter check failed at: engine.cpp::getZork::7, condition: bindIndex >= 0 && bindIndex < getNbBindings()": "tensor-unknown",
    "[ERROR] Unsupported numpy data type: i64. Cannot implicitly convert to tensorrt.Weights.": "weights-type",
    "Unsupported data type encountered in input 0": "tftrt-type",
    "(Unavailable) Load tensorrt api getZork failed": "paddle-tensorrt",
    "#assertion/zork/trt_zork.cpp,103": "plugin-check",
    "zork: z.cpp:5: void Z::make(): Assertion `m_Engine != nullptr' failed.": "echo",
    # The builder.
    "2: [caskZork.cpp::getCaskHandle::9] Error Code 2: Internal Error (Assertion zork failed. )": "timing-cache-kernel",
    "Error Code 2: Internal Error (Assertion !n->candidateRequirements.empty() failed. All of the candidates were removed, which points to the node being "
    "incorrectly marked as an int8 node.)": "int8-node-formats",
    "Error Code 2: Internal Error ([ShapeHostToDeviceCopy 7] requires zork I/O)": "outputs-marked",
    "Turing (SM75): FP32 GEMM is not supported": "turing-float",
    "[myelinZork.cpp::f::9] Error Code 2: Internal Error (zork)": "myelin",
    # Classes.
    "RuntimeError: [Error thrown at core/zork.cpp:9] Expected quib to be true but got false\nUnable to zork": "torch-check",
    "[NitrosContext] GxfGraphActivate Error: GXF_ZORK": "gxf-status",
}
"""Texts of the causes without an example in `SAID`; names that no program prints are invented."""
_NO_TEXT = frozenset({"scale-left-out"})
"""Causes that are found in other ways than by a text."""
_IN_ORDER = frozenset(
    {
        ("option-of-types", "option-unknown"),
        ("export-fake-quant", "onnx-export"),
        ("export-converted", "onnx-export"),
        ("scale-count", "weight-count"),
        ("impossible-size", "out-of-memory"),
        ("python-api-11", "python-api"),
        ("other-context", "engine-crash"),
        ("builder-library", "ort-library"),
        ("infinite-factor", "nvrtc"),
        ("scale-shape", "myelin-check"),
        ("int8-meets-float", "types-differ"),
        ("engine-with-metadata", "other-version"),
        ("gpu-of-jetson", "gpu-too-new"),
        ("dla-no-fallback", "dla-layer"),
        ("dla-run", "dla-compile"),
        ("nvrtc", "myelin-check"),
        ("integer-operator", "unknown-operator"),
        ("context-shared", "myelin-check"),
        ("engine-crash", "myelin-check"),
        ("placeholder", "triton-backend"),
    }
)
"""Pairs of exact causes that claim one text, the narrower one first."""


@pytest.mark.parametrize(("text", "name"), EXAMPLES.items())
def test_an_example_has_its_cause(text: str, name: str) -> None:
    cause = cause_of(text)
    assert cause is not None
    assert cause.name == name


def test_every_cause_has_an_example() -> None:
    named = {*SAID.values(), *EXAMPLES.values()}
    assert [
        cause.name for cause in CAUSES if cause.rank not in UNNAMED and cause.name not in named
    ] == sorted(_NO_TEXT)


def test_two_exact_causes_claim_one_text_only_in_a_known_order() -> None:
    pairs: set[tuple[str, str]] = set()
    for text in (*SAID, *EXAMPLES):
        claims = [cause.name for cause in CAUSES if cause.rank == "exact" and re.search(cause.pattern, text)]
        pairs.update(itertools.pairwise(claims))
    assert pairs == _IN_ORDER


@pytest.mark.parametrize(
    "text",
    [
        "Finished parsing network model. Parse time: 0.63",
        "[I] Created input binding for x with dimensions 1x3x224x224",
        "&&&& PASSED TensorRT.trtexec [TensorRT v100300] # trtexec --onnx=a.onnx --int8 --fp16",
        "[TensorRT-LLM][INFO] Loaded engine size: 3122 MiB",
        "INFO: [NitrosNode] Exporting the final graph based on the negotiation results",
        "Quantization done. Total time used: 98.99 s.",
        "ONNX: export success, saved as 'a.onnx' (12.1 MB)",
        "Selected Device: Orin",
    ],
)
def test_a_line_of_a_build_that_works_has_no_cause(text: str) -> None:
    assert cause_of(text) is None


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            "In node 9 with name: /z and operator: Zork (importZork): INVALID_NODE: Invalid zork: Ab",
            ("/z", "Invalid zork: Ab"),
        ),
        (
            "[Error thrown at core/z.cpp:9] Expected a > 2 to be true but got false\nUnable to zork",
            ("`a > 2`", "Unable to zork"),
        ),
        (
            "Static check for parsing node: Attribute zork is not supported.",
            ("Attribute zork is not supported",),
        ),
    ],
)
def test_a_text_without_an_assertion_is_quoted(text: str, parts: tuple[str, ...]) -> None:
    cause = cause_of(text)
    assert cause is not None
    for part in parts:
        assert part in cause.meaning


def test_a_harmless_warning_never_decides_over_an_error() -> None:
    from qdqtool.trt.causes import decisive

    assert (
        chosen := decisive(["BuilderFlag::kTF32 is set but hardware has none", "the zork failed"])
    ) is not None
    assert chosen[0] == 1
