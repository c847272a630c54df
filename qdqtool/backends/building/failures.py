"""Causes of failed builds: a model that was refused, or a builder process that crashed. Each has a place and a fix."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qdqtool.core.causes import OURS, Fault
from qdqtool.core.protocols import BuildRequest
from qdqtool.core.wording import count_noun
from qdqtool.errors import BuildError, InputFileError, MissingPackage, QdqError
from qdqtool.io.child import Ended
from qdqtool.platform import signal_number
from qdqtool.trt.causes import UNNAMED, by_name, diagnosis, names, node_of
from qdqtool.trt.ops import QDQ

if TYPE_CHECKING:
    from qdqtool.graph.view import GraphView, Node


# --- crashes ---------------------------------------------------------------------------------------------------------
# Explains a crash of a native builder: the most likely cause, and a way to avoid it.
#
# The native builder of TensorRT for RTX ends with a signal on some models. Experiments showed three causes: a Q/DQ
# scale that the graph computes (SIGSEGV), chains of thousands of pointwise nodes (SIGSEGV: the stack is full), and an
# integer division by a constant zero (SIGFPE). The model is searched for them.


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
_NO_ERROR = re.compile(r"^(?:\[[^\]]*\] ?){0,2}\[[VI]\]|cudaError 35|CUDA driver version is insufficient")
"""Lines of a log that report no error of the model."""

Suspect = tuple[str, str]
"""Cause and fix."""


def crash(ended: Ended, request: BuildRequest, log: Path) -> BuildError:
    """Return the error for a builder process that ended without an answer; `log` is its output so far."""
    where = str(request.model)
    if ended.timed_out:
        return BuildError(
            f"the build was stopped after {request.timeout_s:g} s",
            fix="raise --timeout, or make the model smaller; long chains of nodes take minutes",
            where=where,
        )
    if ended.code >= 0:
        cause, fix = _explain_last_errors(log) or (
            last_line(log),
            f"read the end of {request.folder / 'build.log'}",
        )
        return BuildError(
            f"the builder ended with code {ended.code} and no engine: {cause}", fix=fix, where=where
        )
    number = -ended.code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    cause, fix = _suspect(number, request, log)
    return BuildError(f"the native builder was ended by {name}: {cause}", fix=fix, where=where)


def last_line(log: Path) -> str:
    """Return the last line of a build log that is not empty, at most 300 characters."""
    lines = [line.strip() for line in tail(log).splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "the builder wrote nothing")


def tail(log: Path) -> str:
    """Return the last lines of a build log."""
    with log.open("rb") as stream:
        stream.seek(0, 2)
        stream.seek(max(0, stream.tell() - _TAIL))
        return stream.read().decode("utf-8", "replace")


def _suspect(number: int, request: BuildRequest, log: Path) -> Suspect:
    if number == signal_number("SIGKILL"):
        return "most likely it ran out of memory", "free memory, or build for smaller shapes"
    if number == signal_number("SIGILL"):
        return "the builder uses instructions that this processor does not have", "build on a newer machine"
    from qdqtool.graph.onnx_io.read import read
    from qdqtool.graph.view import GraphView

    try:
        view = GraphView(read(request.model))
    except InputFileError as error:
        return f"and the model cannot be read: {error.what}", error.fix
    suspect: Suspect | None = None
    if number == signal_number("SIGFPE"):
        suspect = _zero_divisor(view)
    if number in {signal_number("SIGSEGV"), signal_number("SIGBUS")}:
        suspect = _computed_scale(view) or _long_chain(view, request)
    return (
        suspect
        or _explain_last_errors(log)
        or (f"the cause is unknown; its last line: {last_line(log)}", by_name("internal-check").fix)
    )


def _explain_last_errors(log: Path) -> Suspect | None:
    """Return the meaning and the fix of the last error lines of a log; None if the lines belong to no known class."""
    lines = [line for line in tail(log).splitlines() if not _NO_ERROR.search(line)]
    deciding = diagnosis(lines, OURS)
    return (
        None
        if deciding is None or deciding[1].rank in ("unknown", "echo")
        else (deciding[1].meaning, deciding[1].fix)
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
        f"a chain of {count_noun(longest, 'pointwise node')}, ending at {end!r}, used up the stack of {request.stack_mib} MiB",
        f"raise the stack size (--stack-mib {4 * request.stack_mib}), or shorten the chain",
    )


def _depth(node: Node, depth: dict[str, int]) -> int:
    if node.op not in _POINTWISE:
        return 0
    return 1 + max((depth.get(name, 0) for name in node.inputs), default=0)


# --- refusals --------------------------------------------------------------------------------------------------------


_NOISE = re.compile(r"cudaError 35|CUDA driver version is insufficient|catchCudaError")
"""Messages that builders print on machines without a GPU driver; they do not concern the model."""


class NoKernelError(BuildError):
    """Error for a node without a kernel in the precision of its Q/DQ; `node` is the engine's name for the node."""

    def __init__(self, what: str, *, fix: str, where: str | None = None, node: str = "") -> None:
        super().__init__(what, fix=fix, where=where)
        self.node = node


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """One error reported by the ONNX parser.

    Attributes:
        code: the parser's error code by name ("INVALID_NODE"), or empty.
        node: the node's name, or empty.
        op: its operator, or empty.
        text: the parser's own words.
    """

    code: str
    node: str
    op: str
    text: str


_SENTENCE = re.compile(r'&& "(?P<quoted>[^"]+)"|^Assertion failed: .+?: (?P<spoken>\S.+ .+)$', re.MULTILINE)
"""Explanation in a failed assertion of the parser, without the assertion itself."""
_PARSED = re.compile(r"Parsing node: (?P<name>.*) \[(?P<op>\w+)\]\s*$", re.MULTILINE)

_ERRORS: dict[Fault, type[QdqError]] = {
    "build": BuildError,
    "model file": InputFileError,
    "machine": MissingPackage,
}
_NO_KERNEL = "no-kernel"
_RETRIED = frozenset({_NO_KERNEL, "nvrtc", "myelin-check", "no-operation-kernel"})
"""Causes of a missing kernel that may disappear when the node is float."""


def refusal(mistakes: Sequence[Mistake], messages: Sequence[str], *, where: str, log: str) -> QdqError:
    """Return the error for a model that the parser refused, with the known cause that matches the messages.

    `mistakes` come from the parser, `messages` are the builder's error lines, `log` is the file with all lines.
    """
    spoken = [message for message in messages if not is_noise(message)] or list(messages)
    texts = [*map(_format_mistake, mistakes[:1]), *spoken]
    deciding = diagnosis(texts, OURS)
    if deciding is None or deciding[1].rank in ("unknown", "echo"):
        text = spoken[0] if spoken else texts[0] if texts else "the builder returned no engine and no reason"
        return BuildError(f"the builder refused: {clean(text)}", fix=f"read the end of {log}", where=where)
    at, cause = deciding
    first = mistakes[0] if mistakes else None
    more = f" (and {len(mistakes) - 1} more, see {log})" if len(mistakes) > 1 else ""
    if cause.rank in UNNAMED:
        problem = f"{cause.meaning}{more}"
        return _ERRORS[cause.fault](problem, fix=f"{cause.fix}; details in {log}", where=where)
    sentence = _sentence(first.text) if first is not None and at == 0 else texts[at]
    quoted = f" ({clean(sentence)})" if sentence else ""
    node = first.node if first is not None else node_of("\n".join(spoken))
    op = f" ({first.op})" if first is not None and first.op else ""
    problem = f"{f'node {node!r}{op}: ' if node or op else ''}{cause.meaning}{quoted}{more}"
    if cause.name in _RETRIED and any(names(_NO_KERNEL, message) for message in spoken):
        return NoKernelError(problem, fix=cause.fix, where=where, node=node)
    return _ERRORS[cause.fault](problem, fix=cause.fix, where=where)


def _format_mistake(mistake: Mistake) -> str:
    """Return a parser error in the form in which the parser's log prints it."""
    text = f"{mistake.code}: {mistake.text}"
    if not mistake.node and not mistake.op:
        return text
    if not mistake.node:
        return f"While parsing node number 0 [{mistake.op}]: {text}"
    return f"In node 0 with name: {mistake.node} and operator: {mistake.op or 'unknown'}: {text}"


def is_noise(message: str) -> bool:
    """Return True if a builder message only says that this machine has no usable GPU driver."""
    return bool(_NOISE.search(message)) and message.count("\n") == 0


def clean(message: str) -> str:
    """Shorten a builder message to a readable line, cut off after 300 characters.

    Lines about a missing driver and source positions are removed.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip() and not _NOISE.search(line)]
    text = " ".join(lines or [message.strip()])
    text = re.sub(r"\s*In \w+ at \S+?:\d+\)", ")", text)
    text = re.sub(r"^\w+\.(?:cpp|h|hpp):\d+: ", "", text)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _sentence(text: str) -> str:
    match = _SENTENCE.search(text)
    return (match["quoted"] or match["spoken"]) if match else ""


def last_parsed(log: str) -> tuple[str, str]:
    """Return the name and the operator of the node that the parser read last, from a verbose log.

    Both are "" if the log names no node.
    """
    matches = [*_PARSED.finditer(log)]
    return (matches[-1]["name"], matches[-1]["op"]) if matches else ("", "")
