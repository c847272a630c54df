"""Message patterns about problems: missing scales, ignored requests, and reasons of failures.

# implicit

Implicit INT8 (up to TensorRT 10): calibration, dynamic ranges, tensors without a scale.

# constraints

Requests that the builder does not follow: layers that DLA refuses, precisions that no kernel offers, accuracy checks.

# reasons

Lines with the reason of a failure or of a float engine, from any program: missing kernels, checks, applications.
"""

from qdqtool.buildlog.pattern import PatternSet, message, row

PLUGIN = {
    "implicit": PatternSet(
        patterns=(
            message(
                "scale-missing",
                "Missing scale and zero-point for tensor {tensor>}, expect fall back to non-int8 implementation for any "
                "layer consuming or producing given tensor",
                "Missing scale and zero-point for tensor (Unnamed Layer* 4) [Softmax]_output, expect fall back to "
                "non-int8 implementation for any layer consuming or producing given tensor",
                light="all",
            ),
            message(
                "scale-missing",
                "Missing dynamic range for tensor {tensor>}, expect fall back to non-int8 implementation for any "
                "layer consuming or producing given tensor",
                "Missing dynamic range for tensor 101, expect fall back to non-int8 implementation for any layer "
                "consuming or producing given tensor",
                light="all",
            ),
            message(
                "int8-rejected",
                "Rejecting some int8 implementation of layer {layer>} due to missing int8 scales for tensor {tensor} at "
                "{direction:word} index {index:int}",
                "Rejecting some int8 implementation of layer Conv_32 due to missing int8 scales for tensor 93 at input "
                "index 0",
            ),
            message("calibration-begins", "Starting Calibration.", "Starting Calibration."),
            message("calibration-begins", "Calculating Maxima", "Calculating Maxima"),
            message(
                "calibration-begins-batch",
                "Starting Calibration with batch size {batch:int}.",
                "Starting Calibration with batch size 16.",
            ),
            message(
                "calibration-scales",
                "Generated calibration scales using calibration cache. {rest}",
                "Generated calibration scales using calibration cache. Make sure that calibration cache has latest scales.",
            ),
            message(
                "calibration-ends",
                "Calibration completed in {seconds:num} seconds.",
                "Calibration completed in 4.4 seconds.",
            ),
        )
    ),
    "constraints": PatternSet(
        patterns=(
            message(
                "dla-refused",
                "Default DLA is enabled but layer {layer>} is not supported on DLA, falling back to GPU.",
                "Default DLA is enabled but layer Gather in embedding is not supported on DLA, falling back to GPU.",
            ),
            message(
                "dla-refused",
                "Default DLA is enabled but layer {layer>} is not running on DLA, falling back to GPU.",
                "Default DLA is enabled but layer layer74-act is not running on DLA, falling back to GPU.",
            ),
            message(
                "dla-refused",
                "Default DLA is enabled but layer {layer>} is not supported on DLA and falling back to GPU is not enabled.",
                "Default DLA is enabled but layer 283 copy is not supported on DLA and falling back to GPU is not enabled.",
            ),
            message(
                "dla-unsupported",
                "Layer '{layer>}' ({kind:word}): Unsupported on DLA. Switching this layer's device type to GPU.",
                "Layer '(Unnamed Layer* 277) [Shuffle]' (SHUFFLE): Unsupported on DLA. Switching this layer's device "
                "type to GPU.",
            ),
            message(
                "dla-invalid",
                "Validation failed for DLA layer: {layer>}. Switching to GPU fallback.",
                "Validation failed for DLA layer: /model.10/m/m.0/attn/Reshape. Switching to GPU fallback.",
            ),
            message(
                "dla-subgraphs",
                "DLA supports only {limit:int} subgraphs per DLA core. Switching to GPU for layer {layer}",
                "DLA supports only 8 subgraphs per DLA core. Switching to GPU for layer conv_6",
            ),
            message(
                "dla-precision",
                "DLA only supports FP16 and Int8 precision type. Switching {layer>} device type to GPU.",
                "DLA only supports FP16 and Int8 precision type. Switching (Unnamed Layer* 275) [Gather] device type to GPU.",
            ),
            message(
                "dla-reason",
                "{layer>}: DLA {reason}",
                "/model.23/Concat_6: DLA only supports concatenation on the C dimension.",
                "/model.23/Tile_1: DLA does not support out-of-bounds slice operation. Set slice mode to "
                "SliceMode::kDEFAULT to allow the layer to be offloaded to DLA.",
            ),
            message(
                "dla-lacks",
                "DLA Layer {layer>} does not support {lacking}",
                "DLA Layer activation_32/Relu does not support dynamic shapes in any dimension.",
            ),
            message(
                "dla-kind",
                "{layer>}: {kind} not supported for DLA.",
                "leaky_1: ActivationLayer (with ActivationType = LEAKY_RELU) not supported for DLA.",
            ),
            message(
                "dla-needs",
                "{layer>}: {kind:word} on DLA requires {need}",
                "layer84-route: Concatenation on DLA requires at least two inputs.",
            ),
            message(
                "dla-batch",
                "DLA LAYER: Batch size (combined volume except for CHW dimensions) {batch:int} for layer {layer>} exceeds "
                "max batch size allowed of {limit:int}.",
                "DLA LAYER: Batch size (combined volume except for CHW dimensions) 128 for layer EltWise multiplication in "
                "likelihood calculation exceeds max batch size allowed of 32.",
            ),
            message(
                "dla-no-scale",
                "Node: {layer>} cannot run in INT8 mode due to missing scale and zero point. {rest}",
                "Node: /head/act/Relu cannot run in INT8 mode due to missing scale and zero point. This node will not run on DLA.",
            ),
            message(
                "unobeyed",
                "No implementation of layer {layer>} obeys the requested constraints in strict mode. {rest}",
                "No implementation of layer Conv_70[Conv] + Relu_71[Relu] obeys the requested constraints in strict mode. "
                "No conforming implementation was found i.e. requested layer computation precision and output precision "
                "types are ignored, using the fastest implementation.",
            ),
            message(
                "unobeyed",
                "Warning: no implementation of {layer>} obeys the requested constraints, {rest}",
                "Warning: no implementation of (Unnamed Layer* 174) [Softmax] obeys the requested constraints, using a "
                "higher precision type",
            ),
            message(
                "overruled",
                "For layer {layer>} a non-conforming implementation was chosen than was requested i.e. {rest}",
                "For layer Conv__25 + Relu a non-conforming implementation was chosen than was requested i.e. requested layer "
                "computation precision and output precision types are ignored.",
            ),
            message(
                "accuracy-loss",
                "Accuracy loss for tensor {tensor>} ({algorithm:word}): {loss:num}",
                "Accuracy loss for tensor y (lInf): 0.003492",
            ),
            message(
                "accuracy-failed",
                "Accuracy loss for tensor {tensor>} ({algorithm:word}): {loss:num} [FAIL: >= threshold {threshold:num}]",
                "Accuracy loss for tensor y (cos): 0.001497 [FAIL: >= threshold 0.001000]",
            ),
        )
    ),
    "reasons": PatternSet(
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
                "Error[{code:int}]: Error Code: 9: Skipping tactic {why}",
                "Error[9]: Error Code: 9: Skipping tactic 0x0000000000000000 due to exception [type.cpp:infer_type:145] Could not "
                "infer output types for operation: 3: quantize: a-(fp8[8,8]) | b-(f32[8,8]), c-(f16[8]), axis = 0, No matching rules "
                "found for input operand types",
            ),
            message(
                "skipped",
                "Tactic Device request: {asked} Available: {free}. Device memory is insufficient to use tactic.",
                "Tactic Device request: 1184MB Available: 1021MB. Device memory is insufficient to use tactic.",
            ),
            message(
                "skipped",
                "Skipping tactic {tactic} due to {rest}",
                "Skipping tactic 0 due to insuficient memory on requested size of 29147520 detected for tactic 0.",
                'Skipping tactic 0x0000000000000000 due to Myelin error: tensor "x" has an unitialized dimension.',
            ),
            message(
                "skipped",
                "UNSUPPORTED_STATESkipping tactic {tactic} due to {rest}",
                "UNSUPPORTED_STATESkipping tactic 4 due to insufficient memory on requested size of 66048 detected for tactic "
                "0x000000000000001f.",
            ),
            message(
                "not-opened",
                "Could not open file {path}",
                "Could not open file ../weights/hrnet_w48_coco_256x192.onnx",
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
                "engine-missing",
                "{host?}Deserialize engine failed because file path: {path} open error{rest?}",
                "WARNING: ../nvdsinfer/nvdsinfer_model_builder.cpp:1487 Deserialize engine failed because file path: "
                "/opt/app/model_b1_gpu0_int8.engine open error",
            ),
            message(
                "deepstream-builds",
                "{host}deserialize backend context from engine from file :{path} failed, try rebuild",
                "0:00:01.159080019 17762 0x55de125e0d60 WARN nvinfer gstnvinfer.cpp:677:gst_nvinfer_logger:<primary_gie> "
                "NvDsInferContext[UID 1]: Warning from NvDsInferContextImpl::generateBackendContext() <nvdsinfer_context_impl.cpp:2002> "
                "[UID = 1]: deserialize backend context from engine from file :/opt/app/model_b1_gpu0_int8.engine failed, try rebuild",
            ),
            message(
                "engine-reused",
                "{host?}Use deserialized engine model: {path}",
                "0:00:10.464873182   193 0x7ff95c0022a0 INFO                 nvinfer gstnvinfer.cpp:619:gst_nvinfer_logger:"
                "<primary_gie> NvDsInferContext[UID 1]: Info from NvDsInferContextImpl::generateBackendContext() "
                "<nvdsinfer_context_impl.cpp:1806> [UID = 1]: Use deserialized engine model: /opt/app/model_b1_gpu0_int8.engine",
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
    ),
}
