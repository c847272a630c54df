"""Why builds fail: what the builder's own words mean, and what to do.

Most failed builds print several errors; the last ones ("Engine could not be created from network") only repeat that
it failed. A cause is recognised by words that all have to occur.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCause:
    """A known reason: words that betray it, what it means, what to do."""

    words: tuple[str, ...]
    meaning: str
    fix: str


CAUSES = (
    FailureCause(
        words=("shiftIsAllZeros",),
        meaning="a zero point is not 0; TensorRT quantizes symmetrically only",
        fix="quantize with symmetric INT8 (zero point 0, no UINT8)",
    ),
    FailureCause(
        words=("Scale coefficients must all be positive",),
        meaning="a quantization scale is zero, negative or not a number",
        fix="calibrate again, or exclude the tensor whose range is empty",
    ),
    FailureCause(
        words=("input has type Int32 but must have type",),
        meaning="a DequantizeLinear reads INT32: onnxruntime quantized a bias",
        fix="leave biases in float",
    ),
    FailureCause(
        words=("is only allowed before DQ or PLUGIN",),
        meaning="an INT8 constant feeds something other than DequantizeLinear",
        fix="store the constant in float, or put its DequantizeLinear right behind it",
    ),
    FailureCause(
        words=("could not find any implementation",),
        meaning="no kernel of this GPU runs the layer in the types and formats asked for",
        fix="raise the workspace limit, allow another precision for the layer, or remove Q/DQ around it",
    ),
    FailureCause(
        words=("Could not find any implementation",),
        meaning="no kernel of this GPU runs the layer in the types and formats asked for",
        fix="raise the workspace limit, allow another precision for the layer, or remove Q/DQ around it",
    ),
    FailureCause(
        words=("No importer registered for op",),
        meaning="the parser does not know this operator and found no plug-in for it",
        fix="load the plug-in library, or replace the operator",
    ),
    FailureCause(
        words=("UNSUPPORTED_NODE",),
        meaning="the parser cannot import this operator or this form of it",
        fix="replace the operator, or simplify the model (constant folding, static shapes)",
    ),
    FailureCause(
        words=("Plugin not found",),
        meaning="a plug-in that the model names is not registered",
        fix="load its library (--plugins, --staticPlugins)",
    ),
    FailureCause(
        words=("HW-specific datatypes",),
        meaning="the model holds a type that the target GPU does not have",
        fix="build for a GPU with that type, or quantize to INT8",
    ),
    FailureCause(
        words=("out of memory",),
        meaning="the device or the host ran out of memory",
        fix="lower the workspace limit or the batch, or close other programs",
    ),
    FailureCause(
        words=("insufficient memory",),
        meaning="the device or the host ran out of memory",
        fix="lower the workspace limit or the batch, or close other programs",
    ),
    FailureCause(
        words=("no optimization profile",),
        meaning="the model has dynamic inputs and no shapes were given",
        fix="give --minShapes, --optShapes and --maxShapes",
    ),
    FailureCause(
        words=("optimization profile is missing",),
        meaning="the model has dynamic inputs and no shapes were given",
        fix="give --minShapes, --optShapes and --maxShapes",
    ),
    FailureCause(
        words=("must have at least one output",),
        meaning="the network is empty: the file is no ONNX model, or its outputs were removed",
        fix="check the model file",
    ),
    FailureCause(
        words=("serialize", "version"),
        meaning="the engine was built by another TensorRT version",
        fix="build it again with this version",
    ),
    FailureCause(
        words=("magicTag",),
        meaning="the file is no engine of this TensorRT version",
        fix="build it again with this version",
    ),
    FailureCause(
        words=("Could not open file",),
        meaning="the model file cannot be opened",
        fix="check the path",
    ),
    FailureCause(
        words=("Model should be in bin or model format",),
        meaning="the file is not a model in the format that was asked for",
        fix="check the path and the format",
    ),
    FailureCause(
        words=("cannot be refitted",),
        meaning="the weight is not refittable in this engine",
        fix="build with refitting enabled (--refit, kREFIT)",
    ),
    FailureCause(
        words=("Calibration failure",),
        meaning="calibration found no usable data",
        fix="give a calibrator with data, or a model with Q/DQ",
    ),
)

_CONSEQUENCES = (
    "Engine could not be created",
    "Engine set up failed",
    "Parsing model failed",
    "Failed to create engine",
    "Failed to parse",
    "Building failed",
    "building engine failed",
    "Network And Config setup failed",
    "Failed building",
    "Could not complete",
    "Test engine failed",
    "cudaError 35",
    "Error Code 35",
)


def cause_of(text: str) -> FailureCause | None:
    """The known cause that a message betrays, or None."""
    for cause in CAUSES:
        if all(word in text for word in cause.words):
            return cause
    return None


def is_consequence(text: str) -> bool:
    """Whether a message only says that something before it failed, or is known noise."""
    return any(words in text for words in _CONSEQUENCES)
