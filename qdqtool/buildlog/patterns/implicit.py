"""Implicit INT8 (up to TensorRT 10): calibration, dynamic ranges, tensors without a scale."""

from qdqtool.buildlog.sentence import Family, says

PLUGIN = Family(
    sentences=(
        says(
            "scale-assigned", "Assigning {tensor>} scale and zero-point", "Assigning 135 scale and zero-point"
        ),
        says(
            "scale-source",
            "using {tensor>} scale and zero-point Quantization({values})",
            "using 155 scale and zero-point Quantization(scale: {0.103852,}, zero-point: {})",
        ),
        says(
            "default-quantization",
            "Setting a default quantization params because quantization data is missing for{tensor?}",
            "Setting a default quantization params because quantization data is missing for {ForeignNode[a...b]}",
            light="all",
        ),
        says(
            "scale-overridden",
            "User overriding scale with scale and zero-point Quantization({values})",
            "User overriding scale with scale and zero-point Quantization(scale: {0.015748,}, zero-point: {0,})",
            light="all",
        ),
        says(
            "range-set",
            "Setting dynamic range for {tensor>} to [{low:num},{high:num}]",
            "Setting dynamic range for 423 to [-4,4]",
            light="all",
        ),
        says(
            "tensor-scale",
            "INT8 Inference Tensor scales and zero-points: {tensor>} scale and zero-point Quantization({values})",
            "INT8 Inference Tensor scales and zero-points: 101 scale and zero-point Quantization(scale: "
            "{0.00787594,}, zero-point: {})",
            light="all",
        ),
        says(
            "tensor-scale",
            "INT8 Inference Tensor scales: {tensor>} {values}",
            "INT8 Inference Tensor scales: 101 scale and zero-point Quantization(scale: {0.00787594,})",
            light="all",
        ),
        says(
            "scale-missing",
            "Missing scale and zero-point for tensor {tensor>}, expect fall back to non-int8 implementation for any "
            "layer consuming or producing given tensor",
            "Missing scale and zero-point for tensor (Unnamed Layer* 4) [Softmax]_output, expect fall back to "
            "non-int8 implementation for any layer consuming or producing given tensor",
            light="all",
        ),
        says(
            "scale-missing",
            "Missing dynamic range for tensor {tensor>}, expect fall back to non-int8 implementation for any "
            "layer consuming or producing given tensor",
            "Missing dynamic range for tensor 101, expect fall back to non-int8 implementation for any layer "
            "consuming or producing given tensor",
            light="all",
        ),
        says(
            "int8-rejected",
            "Rejecting some int8 implementation of layer {layer>} due to missing int8 scales for tensor {tensor} at "
            "{direction:word} index {index:int}",
            "Rejecting some int8 implementation of layer Conv_32 due to missing int8 scales for tensor 93 at input "
            "index 0",
        ),
        says("calibration-begins", "Starting Calibration.", "Starting Calibration."),
        says(
            "calibration-begins-batch",
            "Starting Calibration with batch size {batch:int}.",
            "Starting Calibration with batch size 16.",
        ),
        says(
            "calibrated-batch",
            "Calibrated batch {batch:int} in {seconds:num} seconds.",
            "Calibrated batch 0 in 0.0265 seconds.",
        ),
        says(
            "post-processing",
            "Post Processing Calibration data in {seconds:num} seconds.",
            "Post Processing Calibration data in 0.0148 seconds.",
        ),
        says(
            "calibration-ends",
            "Calibration completed in {seconds:num} seconds.",
            "Calibration completed in 4.4 seconds.",
        ),
        says(
            "calibration-cache-read",
            "Reading Calibration Cache for calibrator: {algorithm}",
            "Reading Calibration Cache for calibrator: EntropyCalibration2",
        ),
        says(
            "calibration-cache-written",
            "Writing Calibration Cache for calibrator: {algorithm}",
            "Writing Calibration Cache for calibrator: TRT-8600-EntropyCalibration2",
        ),
        says(
            "calibration-scales",
            "Generated calibration scales using calibration cache. {rest}",
            "Generated calibration scales using calibration cache. Make sure that calibration cache has latest scales.",
        ),
        says(
            "calibration-regenerate",
            "To regenerate calibration cache, please delete the existing one. {rest}",
            "To regenerate calibration cache, please delete the existing one. TensorRT will generate a new "
            "calibration cache.",
        ),
    )
)
