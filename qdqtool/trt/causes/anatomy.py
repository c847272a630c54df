"""Anatomy of an error text: the place, the condition, the sentence, the node and the status that it names.

A text without a known cause still has a class (the code of its error, the phase, the program that prints it) and
parts. A general answer joins both: the meaning of the class, and the parts in the words of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from qdqtool.core.advice import as_float, excluding, with_files
from qdqtool.core.causes import Cause, Situation, Wording
from qdqtool.core.wording import Setting
from qdqtool.trt.causes.classes import FOR_PROGRAMS, RELEASE, SUBJECTS
from qdqtool.trt.names import probable_nodes
from qdqtool.trt.ops import NOT_IMPORTED

_LONGEST = 300
"""Most characters of a part that an answer quotes."""


def _lines(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.MULTILINE) for pattern in patterns)


_PLACES = _lines(
    r"\[\w+\.(?:cpp|h|hpp|cu|cc)::(?:\w+::)*(?P<place>[\w~]+)::\d+\]",
    r"\b(?P<place>I[A-Z]\w+::\w+)\b",
    r"\bIn function (?P<place>\w+)",
    r"operator: \w+ \((?P<place>\w+)\)|In node \d+ \((?P<place_old>\w+)\)",
    r"\bAssertion Error in (?P<place>\w+)|\bError in (?P<place_old>\w+): \d",
    r"(?P<place>\w+\.(?:cpp|hpp|h|cu|cc)):\d+: D?CHECK",
)
_CONDITIONS = _lines(
    r"Parameter check failed.{0,200}?condition: (?P<condition>.+?)(?:\.? In \w+ at |\. [A-Z]|\. ?\)|\)?$)",
    r"Assertion failed: (?![A-Z][a-z]*:? \w)(?P<condition>\(.+?\)|[\w:.]+\([^()]*\)|\S+(?: (?:[=!<>]=?|\|\||in) \S+)*?)(?= && \"|: |$)",
    r"Expected (?P<condition>.{1,200}?) to be true but got false",
    r"Assertion [`']?(?P<condition>.+?)'? failed",
    r"D?CHECK\((?P<condition>.+?)\) failed",
    r"Assertion Error in \w+: \d+ \((?P<condition>.+)\)$",
)
_STATEMENTS = _lines(
    r"&& \"(?P<words>[^\"]+)\"",
    r"\[TensorRT-LLM\]\[ERROR\] Assertion failed: (?P<words>[A-Z].+?)(?: \(/\S+:\d+\))?$",
    r"Assertion failed: (?P<words>[A-Z][a-z]*:? [^()=<>&|\n]*\w)(?= \(| /|\.? *$)",
    r"Assertion failed: \[\w+\] (?P<words>.+)",
    r"Assertion failed: .+?: (?P<words>\S+ .+)",
    r"(?:Assertion .+?|CHECK\(.*?\)) failed\. (?P<words>\w+ (?:[^()\n]|\([^()\n]*\))*\w)",
    r"(?:INVALID|UNSUPPORTED)_NODE(?:_\w+)?: (?!Assertion failed)(?P<words>.+)",
    r"Static check for parsing node: (?P<words>.+)",
    r"Expected .{1,200} to be true but got false\n(?P<words>.+)",
    r"Invalid Node - (?P<named>.+)\n(?:(?P=named): )?(?P<words>.+)",
    r"condition: [^\n]+?\. (?P<words>[A-Z][^\n]+?\.)(?: In \w+ at |\)|$)",
    r"satisfyProfile (?P<words>.+?)\)?$",
    r"\[ONNXRuntimeError\] : \d+ : (?P<words>\w+ : .+)",
    r"failed to load '[^']*'(?: version \d+)?: (?P<words>.+)",
    r"Poll failed for model directory '[^']*': (?P<words>.+)",
    r"Error thrown at \S+\] (?!Expected )(?P<words>.+)",
    r"^[EF]\d{4} [\d:.]+ +\d+ +[\w./-]+:\d+\] \"?(?:ERROR: )?(?P<words>.+?)\"?$",
    r"Error Code \d+: [\w ]+\s\((?!Assertion|Parameter check)(?P<words>.+?)(?: In \w+ at .*)?\)?$",
    r"\boperation:\s+(?P<words>\d+: \w+: .+)",
    r"due to Myelin error: (?P<words>.+)",
    r"what\(\): +(?P<words>.+)",
    r"Value error, (?P<words>.+?)(?: \[type=.*)?$",
    r"(?P<words>\S+\.(?:so|dll)[\w.]*): cannot open shared object",
    r"\[TensorRT-LLM\]\[ERROR\] (?!Assertion failed)(?P<words>.+)",
    r"^ERROR: (?:\S+\.(?:cpp|h|cu|cc):\d+ )(?!In (?:function|node) )(?P<words>.+)",
    r"^\s*(?:[\w.]+\.)?(?P<words>\w*(?:Error|Exception): .+)",
)
_STATUS = re.compile(
    r"\b(?P<status>(?:cudaError[A-Z]\w+|(?:CUDA|CUBLAS|CUDNN)_(?:ERROR|STATUS)_\w+)(?:: ?[\w ,]+)?"
    r"|(?i:cuda (?:error|failure))[^\n]{0,120}|Cuda Runtime \([^)]+\)|Platform \(Cuda\) error"
    r"|Segmentation fault|Bus error|Illegal instruction|Floating point exception|Aborted|SIG[A-Z]{3,5}|Killed)"
)
_SOURCES = re.compile(r"\[?([\w/\\]+\.(?:cpp|hpp|h|cu))\b")
_NODES = _lines(
    r"In node -?\d+ with name: (?P<node>.+?) and operator: (?P<op>\w+)",
    r"While parsing node number \d+ \[(?P<op>\w+)(?: -> \"(?P<node>[^\"]*)\")?",
    r"Invalid Node - (?P<node>.+)",
    r"running (?P<op>\w+) node\. Name:'(?P<node>[^']*)'",
    r"\[ShapeHostToDeviceNode|(?P<node>[\w/.:-]+): (?:I\w+Layer|at least \d+ dimensions)\b",
    r"violate shape constraints: (?P<node>.+?): (?=\w)",
    r"Error \((?P<op>I\w+Layer) (?P<node>[^\s:]+): ",
    r"\((?P<node>\(Unnamed Layer\* \d+\) \[\w+\]): ",
    r" failed\. Node: (?P<node>[^\s)]+)\)?$",
    r"No importer registered for op: (?P<op>\w+)",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Anatomy:
    """The parts of an error text, such as place, condition and node; "" for missing parts.

    Attributes:
        place: the function, or the call of the API, that failed.
        condition: the expression that was not true.
        statement: content of the text in words.
        status: a status of CUDA or a signal.
        node: the name of a node or layer.
        op: its operator.
    """

    place: str = ""
    condition: str = ""
    statement: str = ""
    status: str = ""
    node: str = ""
    op: str = ""


def dissect(text: str) -> Anatomy:
    """Return the parts of an error text."""
    lines = "\n".join(line.strip() for line in text.splitlines())
    return Anatomy(
        place=_first(_PLACES, lines, "place", "place_old"),
        condition=_first(_CONDITIONS, lines, "condition"),
        statement=_first(_STATEMENTS, lines, "words"),
        status=match["status"].strip() if (match := _STATUS.search(lines)) else "",
        node=_first(_NODES, lines, "node"),
        op=_first(_NODES, lines, "op"),
    )


def general(cause: Cause, text: str, timed: str = "") -> Cause:
    """Return a general cause with the node, place and reason in this text, and the facts that stay unknown.

    If the text names no node, the meaning also names the layer `timed`, which the builder timed last.
    """
    parts = dissect(text)
    subject = " ".join(
        filter(None, (f"node {parts.node}" if parts.node else "", f"({parts.op})" if parts.op else ""))
    )
    place = f"in {parts.place}" if parts.place else ""
    where = " ".join(filter(None, (f"at {subject}" if subject else "", place)))
    why = "; ".join(dict.fromkeys(filter(None, (parts.statement, _refute(parts.condition), parts.status))))
    meaning = f"{cause.meaning}{f' {where}' if where else ''}{f': {why}' if why else ''}"
    # An exact cause may have its layer in another line.
    is_layered = cause.area not in _NO_NODE and cause.rank != "exact"
    missing = ["which layer it concerns"] if is_layered and not subject else []
    missing += [] if parts.statement or cause.rank == "unknown" else ["the reason"]
    open_ = f"; the text does not say {' or '.join(missing)}" if missing else ""
    if cause.fix == RELEASE and (
        subject_and_fix := _subject(f"{parts.place} {parts.condition} {' '.join(_SOURCES.findall(text))}")
    ):
        about, first = subject_and_fix
        meaning, cause = (
            f"{meaning}; by its words it is about {about}",
            replace(cause, fix=f"{first}; or {RELEASE}"),
        )
    near = f"; the layer that the builder timed last before it is {timed}" if timed and not subject else ""
    return replace(cause, meaning=f"{meaning}{open_}{near}")


def _subject(words: str) -> tuple[str, str] | None:
    """Return what an internal check of TensorRT is about, and the first thing to try; None if its words do not show it."""
    return next(((about, first) for pattern, about, first in SUBJECTS if re.search(pattern, words)), None)


def for_operator(cause: Cause, text: str) -> Cause:
    """Return the cause with a fix for the operator in the text, if the parser imports no form of the operator."""
    fix = NOT_IMPORTED.get(dissect(text).op) if cause.name in _NOT_IMPORTED else None
    return cause if fix is None else replace(cause, fix=fix)


def in_situation(cause: Cause, layer: str, situation: Situation) -> Cause:
    """Return the cause with the meaning and fix of its first variant for this layer and situation."""
    variant = next((wording for wording in cause.variants if _applies(wording, layer, situation)), None)
    if variant is not None:
        cause = replace(cause, meaning=variant.meaning or cause.meaning, fix=variant.fix)
    fix = cause.fix
    for useless, useful in FOR_PROGRAMS.get(situation.program, ()):
        fix = fix.replace(useless, useful)
    return replace(cause, fix=fix)


def _applies(variant: Wording, layer: str, situation: Situation) -> bool:
    if variant.layer and not re.search(variant.layer, layer):
        return False
    if variant.program and variant.program != situation.program:
        return False
    if variant.io and not re.search(variant.io, situation.io):
        return False
    if variant.step and variant.step != situation.step:
        return False
    # A Q or DQ node decides its type itself, independent of the flags.
    is_by_flags = situation.types and not _QUANTIZER.search(layer)
    return not variant.types or bool(is_by_flags and re.search(variant.types, situation.types))


def for_node(cause: Cause, layer: str) -> Cause:
    """Return the cause with the ONNX node of the layer in its fix, if the fix needs a node.

    If the layer contains a Q or DQ node, the model has Q/DQ, and the fix for such a model is returned.
    """
    nodes = [name for name in probable_nodes(layer) if not _NO_NODES.search(name)][:1]
    if _NODE not in cause.fix:
        return cause
    if not nodes:
        return replace(
            cause, fix=cause.fix.replace(_NODE, f"{_NODE} (NODE: the ONNX node that this layer computes)")
        )
    if _QUANTIZER.search(layer):
        return replace(
            cause,
            fix=f"{with_files(as_float(nodes, placed=False), 'MODEL')} (in a recipe: {excluding(nodes)}); or allow FP16 too (--fp16), which adds kernels that "
            "write FP16, or build with another release of TensorRT",
        )
    return replace(cause, fix=cause.fix.replace(_NODE, excluding(nodes)))


_NODE = str(Setting("place.exclude", "[NODE]"))
_NO_NODES = re.compile(
    r"QuantizeLinear|_quantize_scale_node|_quantized$|\.(?:weight|bias)$|^onnx::|\(Unnamed Layer\*|\b0x[0-9a-f]{6,}|^%"
)
"""Names in a fused layer that no node of an ONNX model has, so none can be kept float: quantizers, constants, layers that
TensorRT or Torch-TensorRT names itself."""
_QUANTIZER = re.compile(r"QuantizeLinear|_quantize_scale_node")
_NOT_IMPORTED = frozenset({"unsupported-node", "unknown-operator", "integer-operator"})
"""Causes about an operator that the parser does not import."""


_NEVER = frozenset({"false", "0"})
"""Conditions that only mark a place which is never to be reached."""
_NO_NODE = frozenset({"host", "driver", "gpu", "engine", "file", "running", "check"})
"""Areas of causes that are not about a layer."""


def _refute(condition: str) -> str:
    return f"`{condition}` is not true" if condition and condition.lower() not in _NEVER else ""


def _first(patterns: tuple[re.Pattern[str], ...], text: str, *names: str) -> str:
    """Return the first group that one of the patterns matches in a text, shortened."""
    for pattern in patterns:
        for match in pattern.finditer(text):
            for name in names:
                part = match.groupdict().get(name)
                if part and part.strip():
                    return part.strip() if len(part) <= _LONGEST else f"{part.strip()[:_LONGEST]}..."
    return ""
