"""Lines that give the reason of a failure or of a float engine, whoever prints them: kernels left out, checks, applications."""

from qdqtool.buildlog.pattern import PatternSet, message, row

PLUGIN = PatternSet(
    patterns=(
        message(
            "skipped",
            "Skipping tactic {tactic} due to exception {why}",
            "Skipping tactic 0x0000000000000000 due to exception [myelin_graph.h:1182] MyelinCheckException: "
            "nvrtc_compile.cpp:1118: CHECK(success) failed. NVRTC Compilation failure",
        ),
        message(
            "skipped",
            "Error[{code:int}]: Skipping tactic {why}",
            "Error[9]: Skipping tactic 0x0000000000000000 due to exception [myelin_graph.h:1182] MyelinCheckException: "
            "nvrtc_compile.cpp:1118: CHECK(success) failed. NVRTC Compilation failure",
        ),
        message(
            "skipped",
            "Tactic Device request: {asked} Available: {free}. Device memory is insufficient to use tactic.",
            "Tactic Device request: 1184MB Available: 1021MB. Device memory is insufficient to use tactic.",
        ),
        message(
            "skipped",
            "Skipping tactic {tactic} due to insuficient memory on requested size of {rest}",
            "Skipping tactic 0 due to insuficient memory on requested size of 29147520 detected for tactic 0.",
        ),
        message(
            "skipped",
            "Skipping tactic {tactic} due to insufficient memory on requested size of {rest}",
            "Skipping tactic 3 due to insufficient memory on requested size of 9385 detected for tactic 0x0000000000000004.",
        ),
        message(
            "skipped",
            "UNSUPPORTED_STATESkipping tactic {tactic} due to {rest}",
            "UNSUPPORTED_STATESkipping tactic 4 due to insufficient memory on requested size of 66048 detected for tactic "
            "0x000000000000001f.",
        ),
        row(
            "reason",
            r"(?P<what>(?:MyelinCheckException: )?\w{1,60}\.(?:cpp|h):\d{1,6}: D?CHECK\().{1,2000}",
            "nvrtc_compile.cpp:940: CHECK(false) failed. NVRTC Compilation failure",
            "mha_fusion.cpp:344: DCHECK(fc1_ && fc2_ && softmax_) failed. ",
        ),
        message(
            "host-decides",
            "{host?}INT8 calibration file not specified. {rest?}",
            "WARNING: ../nvdsinfer/nvdsinfer_model_builder.cpp:1208 INT8 calibration file not specified. Trying FP16 mode.",
        ),
        message(
            "host-decides",
            "{host?}INT8 not supported by platform. {rest?}",
            "WARNING: INT8 not supported by platform. Trying FP16 mode.",
        ),
        message(
            "host-decides",
            "{host?}FP16 not supported by platform. {rest?}",
            "WARNING: FP16 not supported by platform. Using FP32 mode.",
        ),
        message(
            "host-decides",
            "{host?} without providing valid calibrator, disabling INT8{rest?}",
            "requested fasted precision for device DLA_0 without providing valid calibrator, disabling INT8",
        ),
        message(
            "host-decides",
            "{host?}Failed to create TensorrtExecutionProvider{rest?}",
            "Failed to create TensorrtExecutionProvider. Please reference the requirements to ensure all dependencies are met.",
        ),
        message(
            "host-decides",
            "{host?}Failed to create NvTensorRTRTXExecutionProvider{rest?}",
            "Failed to create NvTensorRTRTXExecutionProvider. Please reference the requirements.",
        ),
        message(
            "host-decides",
            "EP Error {where}: {rest}",
            "EP Error /onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:1193 onnxruntime::ProviderLibrary::Get() "
            "[ONNXRuntimeError] : 1 : FAIL : Failed to load library libonnxruntime_providers_tensorrt.so with error: "
            "libnvinfer.so.8: cannot open shared object file: No such file or directory",
        ),
        message(
            "host-decides",
            "{host?}Falling back to [{rest}",
            "Falling back to ['CUDAExecutionProvider', 'CPUExecutionProvider'] and retrying.",
        ),
        message(
            "host-decides",
            "{host?}are currently set to run in Torch{rest?}",
            "The following nodes are currently set to run in Torch:",
        ),
        message(
            "host-decides",
            "{host?}INT8 export requires a missing 'data' arg for calibration{rest?}",
            "WARNING \u26a0\ufe0f INT8 export requires a missing 'data' arg for calibration. Using default 'data=coco8.yaml'.",
        ),
        message(
            "engine-written",
            "{host?}serialize cuda engine to file: {path} successfully",
            "0:06:12.911236021  9021 0x55aa10dfe640 INFO                 nvinfer gstnvinfer.cpp:682:gst_nvinfer_logger:"
            "<primary_gie> NvDsInferContext[UID 1]: Info from NvDsInferContextImpl::buildModel() "
            "<nvdsinfer_context_impl.cpp:1955> [UID = 1]: serialize cuda engine to file: /opt/app/model_b1_gpu0_fp16.engine "
            "successfully",
        ),
    )
)
