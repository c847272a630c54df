"""Explains why a native builder crashed: the most likely cause, and a way to avoid it.

The native builder of TensorRT for RTX ends with a signal on some models; what does it was found by experiment:
a Q/DQ scale that the graph computes (SIGSEGV), chains of thousands of pointwise nodes (SIGSEGV: the stack is used
up), and an integer division by a constant zero (SIGFPE). The suspect is looked up in the model.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.core.build import BuildRequest
from qdqtool.core.wording import counted
from qdqtool.errors import BuildError, InputFileError
from qdqtool.io.child import Ended
from qdqtool.platform import signal_number
from qdqtool.trt.ops import QDQ

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView, Node

INTEGER_DIVISIONS = frozenset({"Div", "Mod"})


_LONG_CHAIN = 500
"""Number of consecutive pointwise nodes from which a chain is a suspected cause."""
_TAIL = 1 << 14
"""Bytes read from the end of a log, to find the last line and the last step of the build."""
_POINTWISE_OPS = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh Cast Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu "
    "Greater GreaterOrEqual HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min "
    "Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub "
    "Sum Tan Tanh ThresholdedRelu Where Xor"
)
_POINTWISE = frozenset(_POINTWISE_OPS.split())

Suspect = tuple[str, str]
"""Cause and fix."""


def crash(ended: Ended, request: BuildRequest, log: Path) -> BuildError:
    """Return the error for a builder that ended without an answer; `log` is its output so far."""
    where = str(request.model)
    if ended.timed_out:
        return BuildError(
            f"the build was stopped after {request.timeout_s:g} s",
            fix="raise --timeout, or make the model smaller; long chains of nodes take minutes",
            where=where,
        )
    if ended.code >= 0:
        return BuildError(
            f"the builder ended with code {ended.code} and no engine: {last_line(log)}",
            fix=f"read the end of {request.folder / 'build.log'}",
            where=where,
        )
    number = -ended.code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    what, fix = _suspect(number, request, log)
    return BuildError(f"the native builder was ended by {name}: {what}", fix=fix, where=where)


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty, at most 300 characters."""
    lines = [line.strip() for line in tail(log).splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "it wrote nothing")


def tail(log: Path) -> str:
    """Return the end of a log."""
    with log.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - _TAIL))
        return stream.read().decode("utf-8", "replace")


def _suspect(number: int, request: BuildRequest, log: Path) -> Suspect:
    if number == signal_number("SIGKILL"):
        return "most likely it ran out of memory", "free memory, or build for smaller shapes"
    if number == signal_number("SIGILL"):
        return "it uses instructions that this processor does not have", "build on a newer machine"
    from qdqtool.graph.onnx_io.read import read
    from qdqtool.graph.view import GraphView

    try:
        view = GraphView(read(request.model))
    except InputFileError as error:
        return f"and the model cannot be read: {error.what}", error.fix
    found: Suspect | None = None
    if number == signal_number("SIGFPE"):
        found = _zero_divisor(view)
    if number in {signal_number("SIGSEGV"), signal_number("SIGBUS")}:
        found = _computed_scale(view) or _long_chain(view, request)
    return found or (
        f"the cause is unknown; its last line: {last_line(log)}",
        "find the node by cutting the model into halves, and report it to NVIDIA",
    )


def _zero_divisor(view: GraphView) -> Suspect | None:
    for node in view.nodes:
        if node.op not in INTEGER_DIVISIONS or len(node.inputs) < 2:
            continue
        divisor = view.constant(node.inputs[1])
        if divisor is not None and divisor.dtype.kind in "iu" and not divisor.all():
            return (
                f"node {node.name!r} ({node.op}) divides integers by a constant zero",
                "correct the divisor, or remove the node",
            )
    return None


def _computed_scale(view: GraphView) -> Suspect | None:
    for node in view.nodes:
        if node.op in QDQ and len(node.inputs) > 1:
            scale = node.inputs[1]
            if not view.is_constant(scale):
                return (
                    f"the scale {scale!r} of node {node.name!r} ({node.op}) is computed in the graph",
                    "make the scale a constant: calibrate it, or fold constants first",
                )
    return None


def _long_chain(view: GraphView, request: BuildRequest) -> Suspect | None:
    depth: dict[str, int] = {}
    longest, end = 0, ""
    for node in view.nodes:
        reached = _depth(node, depth)
        depth.update(dict.fromkeys(node.outputs, reached))
        if reached > longest:
            longest, end = reached, node.name
    if longest < _LONG_CHAIN:
        return None
    return (
        f"a chain of {counted(longest, 'pointwise node')}, ending at {end!r}, used up the stack of {request.stack_mib} MiB",
        f"raise the stack size (--stack-mib {4 * request.stack_mib}), or shorten the chain",
    )


def _depth(node: Node, depth: dict[str, int]) -> int:
    if node.op not in _POINTWISE:
        return 0
    return 1 + max((depth.get(name, 0) for name in node.inputs), default=0)
