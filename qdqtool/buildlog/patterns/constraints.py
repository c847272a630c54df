"""Requests that the builder does not follow: layers that DLA refuses, precisions that no kernel offers, accuracy checks."""

from qdqtool.buildlog.pattern import PatternSet, message

PLUGIN = PatternSet(
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
)
