"""Warnings that a person should know the meaning of."""

from qdqtool.buildlog.sentence import Family, says

PLUGIN = Family(
    sentences=(
        says(
            "weights-listed",
            "List of affected weights: {weights}",
            "List of affected weights: Conv_1.weight, Conv_2.weight",
        ),
        says(
            "auxiliary-streams",
            "The engine uses {streams:int} auxiliary streams, {rest}",
            'The engine uses 2 auxiliary streams, so the "Total" latency may not be accurate because some layers may have run in parallel!',
        ),
        says(
            "weight-clamped",
            "Weight at index {index:int}: {value} is out of range. Clamping to: {limit}",
            "Weight at index 0: 9223372036854775807 is out of range. Clamping to: 2147483647",
        ),
        says(
            "weights-converted",
            "TensorRT encountered issues when converting weights between types {rest}",
            "TensorRT encountered issues when converting weights between types and that could affect accuracy.",
        ),
        says(
            "weights-advice",
            "Check verbose logs for the list of affected weights.",
            "Check verbose logs for the list of affected weights.",
        ),
        says(
            "weights-affected",
            "- {weights:int} weights are affected by this issue: {what}",
            "- 3 weights are affected by this issue: Detected subnormal FP16 values.",
        ),
        says(
            "fp16-not-native",
            "FP16 support requested on hardware without native FP16 support, {rest}",
            "FP16 support requested on hardware without native FP16 support, performance will be negatively affected.",
        ),
        says(
            "other-device-plan",
            "Using an engine plan file across different models of devices is not recommended {rest}",
            "Using an engine plan file across different models of devices is not recommended and is likely to affect performance or even cause errors.",
        ),
        says(
            "int64-weights",
            "Your ONNX model has been generated with INT64 weights, while TensorRT does not natively support INT64. "
            "{rest}",
            "Your ONNX model has been generated with INT64 weights, while TensorRT does not natively support INT64. "
            "Attempting to cast down to INT32.",
        ),
        says(
            "int64-binding",
            "Make sure {direction:word} {tensor} has Int64 binding.",
            "Make sure output z has Int64 binding.",
        ),
        says(
            "fp16-weights",
            "Weights [name={weights>}] had the following issues when converted to FP16:",
            "Weights [name=574 + (Unnamed Layer* 95) [Shuffle]] had the following issues when converted to FP16:",
        ),
        says("fp16-subnormal", "- Subnormal FP16 values detected.", "- Subnormal FP16 values detected."),
        says(
            "fp16-tiny",
            "- Values less than smallest positive FP16 Subnormal value detected. {rest}",
            "- Values less than smallest positive FP16 Subnormal value detected. Converting to FP16 minimum "
            "subnormalized value.",
        ),
        says(
            "fp16-advice",
            "If this is not the desired behavior, please modify the weights or retrain {rest}",
            "If this is not the desired behavior, please modify the weights or retrain with regularization to adjust "
            "the magnitude of the weights.",
        ),
        says(
            "max-batch",
            "The getMaxBatchSize() function should not be used with an engine built from a network created with {rest}",
            "The getMaxBatchSize() function should not be used with an engine built from a network created with "
            "NetworkDefinitionCreationFlag::kEXPLICIT_BATCH flag. This function will always return 1.",
        ),
        says(
            "default-stream",
            "Using default stream in {call} may lead to performance issues {rest}",
            "Using default stream in enqueueV3() may lead to performance issues due to additional calls to "
            "cudaStreamSynchronize() by TensorRT to ensure correct synchronization.",
        ),
        says(
            "weak-typing",
            "Weakly-typed networks have been deprecated in TensorRT. {rest}",
            "Weakly-typed networks have been deprecated in TensorRT. Use strongly typed networks.",
        ),
    )
)
