"""Implicit INT8 (up to TensorRT 10): calibration, dynamic ranges, tensors without a scale."""

from qdqtool.buildlog.pattern import PatternSet, message

PLUGIN = PatternSet(
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
        message(
            "calibration-begins-batch",
            "Starting Calibration with batch size {batch:int}.",
            "Starting Calibration with batch size 16.",
        ),
        message(
            "calibration-ends",
            "Calibration completed in {seconds:num} seconds.",
            "Calibration completed in 4.4 seconds.",
        ),
    )
)
