"""Turns a native builder's messages about a refused model into a cause, a place and a fix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.core.causes import Fault
from qdqtool.errors import BuildError, InputFileError, MissingPackage, QdqError
from qdqtool.trt.causes import UNNAMED, cause_of, decisive, names, node_of
from qdqtool.trt.ops import NOT_IMPORTED, PRODUCTS, QDQ

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
_RETRIED = frozenset({_NO_KERNEL, "nvrtc", "myelin-check"})
"""Causes of a missing kernel that may disappear when the node is float."""


def refusal(mistakes: Sequence[Mistake], messages: Sequence[str], *, where: str, log: str) -> QdqError:
    """Return the error for a model that was refused.

    `mistakes` come from the parser, `messages` are the builder's error lines, `log` is where all lines are.
    """
    if mistakes:
        return _parse_error(mistakes, messages, where=where, log=log)
    spoken = [message for message in messages if not is_noise(message)] or list(messages)
    text = spoken[0] if spoken else "the builder returned no engine and no reason"
    found = decisive(spoken)
    if found is None or found[1].rank in UNNAMED:
        return BuildError(f"the builder refused: {clean(text)}", fix=f"read the end of {log}", where=where)
    cause = found[1]
    if cause.fault != "build":
        return _ERRORS[cause.fault](cause.meaning, fix=cause.fix, where=where)
    node = node_of("\n".join(spoken))
    place = f"node {node!r}: " if node else ""
    what = f"{place}{cause.meaning} ({clean(spoken[found[0]])})"
    if cause.name in _RETRIED and any(names(_NO_KERNEL, message) for message in spoken):
        return NoKernelError(what, fix=cause.fix, where=where, node=node)
    return BuildError(what, fix=cause.fix, where=where)


def is_noise(message: str) -> bool:
    """Return whether a message only reports that this machine has no usable GPU driver."""
    return bool(_NOISE.search(message)) and message.count("\n") == 0


def clean(message: str) -> str:
    """Shorten a message to one readable line of at most 300 characters.

    Lines about a missing driver and source positions are removed.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip() and not _NOISE.search(line)]
    text = " ".join(lines or [message.strip()])
    text = re.sub(r"\s*In \w+ at \S+?:\d+\)", ")", text)
    text = re.sub(r"^\w+\.(?:cpp|h|hpp):\d+: ", "", text)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _parse_error(mistakes: Sequence[Mistake], messages: Sequence[str], *, where: str, log: str) -> QdqError:
    first = mistakes[0]
    more = f" (and {len(mistakes) - 1} more, see {log})" if len(mistakes) > 1 else ""
    place = f"node {first.node!r} ({first.op}): " if first.node or first.op else ""
    if first.op in NOT_IMPORTED or _unsupported(first):
        what = f"{place}the operator {first.op} is not supported by the builder{more}"
        fix = NOT_IMPORTED.get(first.op, "replace the operator, or cut the model before it")
        return BuildError(what, fix=fix, where=where)
    cause = cause_of(f"{first.code}: {first.text}")
    if cause is not None and cause.before:
        # What the parser says of a constant may not say why it failed; the error lines do.
        earlier = (cause_of(message) for message in messages)
        cause = next((found for found in earlier if found is not None and found.name in cause.before), cause)
    if cause is None or cause.rank in UNNAMED:
        text = f"{place}{clean(_sentence(first.text) or first.text)} [{first.code}]{more}"
        return BuildError(text, fix=f"{_way_out(first.op)}; details in {log}", where=where)
    said = _sentence(first.text)
    quoted = f" ({clean(said)})" if said else ""
    return _ERRORS[cause.fault](f"{place}{cause.meaning}{quoted}{more}", fix=cause.fix, where=where)


def _unsupported(mistake: Mistake) -> bool:
    """Return whether the builder does not support the operator at all, rather than this use of it."""
    if re.search(r"[Pp]lugin not found|was not found in plugin", mistake.text):
        return True
    return mistake.code == "UNSUPPORTED_NODE" and not _sentence(mistake.text)


def _sentence(text: str) -> str:
    found = _SENTENCE.search(text)
    return (found["quoted"] or found["spoken"]) if found else ""


def _way_out(op: str) -> str:
    """Return the fix for a node that the parser refuses.

    Placement can only change Q/DQ nodes and the compute nodes that read them.
    """
    if op in QDQ | PRODUCTS:
        return "change this node, or exclude it from placement"
    if op:
        return "change this node in the export of the model, or cut the model before it"
    return "build the float model: if it fails with the same message, the export is wrong"


def last_parsed(log: str) -> tuple[str, str]:
    """Return name and operator of the node that the parser read last, from a verbose log.

    Both are empty if the log names none.
    """
    found = [*_PARSED.finditer(log)]
    return (found[-1]["name"], found[-1]["op"]) if found else ("", "")
