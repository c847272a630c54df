"""Lines that name no reason: general ones, which an exact cause before them decides, and mere repetitions."""

from __future__ import annotations

from qdqtool.core.causes import Cause
from qdqtool.core.commands import Command

REST = (
    Cause(
        name="no-outputs",
        area="file",
        pattern=r"[Nn]etwork must have at least one output",
        meaning="the network is empty: the file is not an ONNX model, declares no outputs, or was not parsed to its end",
        fix="pass an ONNX model with at least one output; an error of the parser before this line decides",
        fault="model file",
        rank="general",
    ),
    Cause(
        name="unsupported-node",
        area="parser",
        pattern=r"UNSUPPORTED_NODE|UNSUPPORTED_GRAPH",
        meaning="the parser cannot import this operator or this form of it",
        fix="replace the operator, or simplify the model (constant folding, fixed shapes)",
        rank="vague",
    ),
    Cause(
        name="parser-check",
        area="parser",
        pattern=r"INVALID_NODE|INVALID_GRAPH|Assertion failed:|While parsing node number|Invalid Node - |ERROR: \S+ In function \w+"
        r"|In node \d+ ",
        meaning="the parser refuses a node: one of its conditions does not hold",
        fix="change this node where the model is exported, or cut the model before it",
        rank="vague",
    ),
    Cause(
        name="internal-check",
        area="kernel",
        pattern=r"Internal Error \((?!Assertion engine)",
        meaning="the builder failed on a check of its own",
        fix="read the error before it; if there is none, build with another release of TensorRT",
        rank="vague",
    ),
    Cause(
        name="wrong-call",
        area="engine",
        pattern=r"API Usage Error|Parameter check failed",
        meaning="the program calls TensorRT in a way that this release does not allow; the text in brackets says which",
        fix="change the call or the flag that it names",
        rank="vague",
    ),
)
"""General lines: an exact cause before them decides."""

_ECHOES = (
    r"Engine could not be created|Engine set up failed|Engine creation failed|Parsing model failed|Failed to create engine"
    r"|Failed to parse|[Bb]uilding (?:engine )?failed|Network And Config setup failed|Network validation failed|Failed building"
    r"|Could not complete|Test engine failed|cudaError 35|Error Code 35|Assertion engine(?:Ptr)? != nullptr failed"
    r"|^FAILED|Deserialize the cuda engine failed|Could not parse ONNX correctly|--- (?:Begin|End) node|(?:^|: )(?:input|output|name|op_type): \""
)
ECHOES = (
    Cause(
        name="echo",
        area="check",
        pattern=_ECHOES,
        meaning="this line only repeats that the build failed",
        fix=f"read the errors before it: {Command('parse', ('LOG',))} names the one that decides",
        rank="echo",
    ),
)
"""Lines that say nothing by themselves."""
