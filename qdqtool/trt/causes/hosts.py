"""Causes in the application around the builder, which chooses a precision or gives up itself."""

from __future__ import annotations

from qdqtool.core.causes import Cause

HOSTS = (
    Cause(
        name="deepstream-no-calibration",
        area="host",
        pattern=r"INT8 calibration file not specified\. Trying FP16 mode",
        meaning="DeepStream was told INT8 (network-mode=1) without a calibration file, and builds FP16",
        fix="set int8-calib-file in the nvinfer configuration to a calibration cache; a model with Q/DQ: build the engine with trtexec, "
        "and set model-engine-file",
        effect="float",
        precision="fp16",
    ),
    Cause(
        name="deepstream-no-int8",
        area="host",
        pattern=r"INT8 not supported by platform\. Trying FP16 mode",
        meaning="this GPU has no fast INT8 (Jetson Nano and TX2 have none), and DeepStream builds FP16",
        fix="use FP16 (network-mode=2), or a GPU of compute capability 6.1, 7.2 or newer",
        effect="float",
        precision="fp16",
    ),
    Cause(
        name="deepstream-no-fp16",
        area="host",
        pattern=r"FP16 not supported by platform\. (?:Using|Trying) FP32 mode",
        meaning="this GPU has no fast FP16, and DeepStream builds FP32",
        fix="use FP32 (network-mode=0), or a GPU with FP16",
        effect="float",
        precision="fp32",
    ),
    Cause(
        name="jetson-no-calibrator",
        area="host",
        pattern=r"without providing valid calibrator, disabling INT8",
        meaning="jetson-inference got no calibrator, and takes INT8 out of the choice",
        fix="give a calibrator, or a model with Q/DQ",
        effect="float",
    ),
    Cause(
        name="ort-fallback",
        area="host",
        pattern=r"Falling back to \[.*\] and retrying|Failed to create (?:Nv)?Tensor[Rr][Tt]\w*ExecutionProvider|EP Error .*(?:Tensorrt|NvTensorRT)",
        meaning="onnxruntime could not create its TensorRT provider: the model runs on the CUDA or CPU provider, without TensorRT",
        fix="install the TensorRT release that this onnxruntime was built for, and put its libraries on the library path",
        effect="float",
    ),
    Cause(
        name="ort-library",
        area="host",
        pattern=r"(?:libnvinfer|nvinfer|libnvonnxparser|onnxruntime_providers_tensorrt)\S*: cannot open shared object|LoadLibrary failed with error 126",
        meaning="a library of TensorRT, or one that it needs, is not found: the program runs without TensorRT",
        fix="install the TensorRT release that the program was built for, and put its folder on LD_LIBRARY_PATH (Windows: PATH)",
        effect="float",
        fault="machine",
    ),
    Cause(
        name="ort-partition",
        area="host",
        pattern=r"(?:TensorRT|NvTensorRTRTX)\w*(?: EP|ExecutionProvider)?.{0,60}(?:No graph will run|not supported by|rejected|fall ?back)",
        meaning="onnxruntime gives these nodes to another provider: they run without TensorRT",
        fix="see which nodes with the provider's verbose log; replace or convert them",
        effect="float",
    ),
    Cause(
        name="torch-fallback",
        area="host",
        pattern=r"run in (?:PyTorch|Torch)\b|Enabling PyTorch fallback|not supported by .{0,30}converters?|falling back to (?:PyTorch|eager)",
        meaning="Torch-TensorRT leaves these operations to PyTorch: they are in no TensorRT engine",
        fix="add a converter, or replace the operation; require_full_compilation=True makes it an error",
        effect="float",
    ),
    Cause(
        name="ultralytics-calibration",
        area="host",
        pattern=r"INT8 export requires a missing 'data' arg for calibration",
        meaning="Ultralytics calibrates with its own small example data, because no data was given",
        fix="pass data=FILE.yaml with your own images to export",
        effect="warns",
    ),
    Cause(
        name="ultralytics-no-engine",
        area="host",
        pattern=r"export failure.*'NoneType' object|TensorRT engine build returned None|a bytes-like object is required, not 'NoneType'"
        r"|incompatible function arguments.*deserialize_cuda_engine|no attribute 'create_execution_context'",
        meaning="the builder returned no engine, and the program went on without one",
        fix="read the builder's error before this line",
        rank="echo",
    ),
    Cause(
        name="triton-load",
        area="host",
        pattern=r"unable to (?:create|load|deserialize) (?:TensorRT engine|plan file)|failed to load '.*' version|failed to load all models",
        meaning="Triton could not load the engine; the line before says why",
        fix="build the engine with the TensorRT release of this Triton container, on its GPU",
        rank="general",
        before=("other-version", "other-device", "lean-runtime", "plugin-missing"),
    ),
    Cause(
        name="llm-build",
        area="host",
        pattern=r"Failed to build (?:serialized|LLM) engine|Engine building failed|Failed to initialize executor|Building serialized network failed",
        meaning="the program around TensorRT reports that the build failed; an error before this line says why",
        fix="read the builder's error before this line",
        rank="echo",
    ),
    Cause(
        name="llm-gemm",
        area="host",
        pattern=r"Have not found any valid GEMM config|Error occurred when running GEMM",
        meaning="a GEMM plug-in of TensorRT-LLM has no kernel for this GPU and type",
        fix="choose another format for this GPU (INT8 or FP8 instead of FP4), or --gemm_plugin disable",
    ),
)
"""Applications around TensorRT, which choose a precision or give up themselves."""
