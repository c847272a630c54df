"""Turns what a native builder says when it refuses a model into what is wrong, where, and how to fix it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from qdqtool.errors import BuildError, InputFileError, MissingPackage, QdqError
from qdqtool.trt.ops import NOT_IMPORTED, PRODUCTS, QDQ

_NOISE = re.compile(r"cudaError 35|CUDA driver version is insufficient|catchCudaError")
"""Said by builders on machines without a driver, about nothing that concerns the model."""


class NoKernelError(BuildError):
    """No kernel computes a node in the precision that its Q/DQ asks for; `node` is the engine's name for it."""

    def __init__(self, what: str, *, fix: str, where: str | None = None, node: str = "") -> None:
        super().__init__(what, fix=fix, where=where)
        self.node = node


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """One complaint of the ONNX parser.

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A sentence of the builder that we understand, and the error it becomes."""

    pattern: re.Pattern[str]
    what: str
    fix: str
    kind: type[QdqError]


def _known(pattern: str, what: str, fix: str, kind: type[QdqError] = BuildError) -> Known:
    return Known(pattern=re.compile(pattern), what=what, fix=fix, kind=kind)


_SENTENCE = re.compile(r'&& "(?P<quoted>[^"]+)"|^Assertion failed: .+?: (?P<spoken>\S.+ .+)$', re.MULTILINE)
"""What the parser says about an assertion that failed, apart from the assertion."""
_PARSED = re.compile(r"Parsing node: (?P<name>.*) \[(?P<op>\w+)\]\s*$", re.MULTILINE)

_DECIDE_IF = (
    "give the model fixed shapes (python -m onnxruntime.tools.make_dynamic_shape_fixed): `run`, `quantize` and `convert` then "
    "put the branch that is taken in the place of every If that shapes decide. Where an input decides (a sampling rate), it is "
    """made a constant by --set 'prepare.constants={"sr": 16000}'"""
)
_NEVER = _known(
    r"has no runners that implement it",
    "the builder has no kernel for a node of this kind, in whatever precision",
    "end the model in front of it, and compute the rest outside the engine",
)
_NO_KERNEL = _known(
    r"[Cc]ould not find any implementation|[Nn]o implementation (?:of|for)|[Nn]o tactics? (?:available|to implement)",
    "there is no kernel for this node in the precision asked for",
    "keep the node float: exclude it from placement",
)
_NO_TYPE = _known(
    r"Found unsupported (?:datatype|input type)",
    "a constant has a type that TensorRT does not read, such as INT16, UINT16 or FP8 E5M2",
    "`qdqtool repair` makes INT8 of INT16; `qdqtool lint` names the node",
)
KNOWN = (
    _NO_TYPE,
    _known(
        r"no builder can be created|CUDA initialization failure|no CUDA-capable device",
        "TensorRT finds no usable GPU, or the GPU's driver is too old for it",
        "run on a machine with an NVIDIA GPU, or use --builder rtx, which needs none; see qdqtool doctor",
        MissingPackage,
    ),
    _known(
        r"a name is not UTF-8",
        "a name in the model is not valid UTF-8: the file is damaged",
        "export the model again",
        InputFileError,
    ),
    _known(
        r"MODEL_DESERIALIZE_FAILED|Failed to parse the ONNX model|Could not open file",
        "cannot be parsed as an ONNX model: it is damaged, cut short or something else",
        "export the model again",
        InputFileError,
    ),
    _known(
        r"Network must have at least one output",
        "holds no network: it is not an ONNX model, or it declares no outputs",
        "pass an ONNX model with at least one output",
        InputFileError,
    ),
    _known(
        r"Failed to import initializer|Failed to open file|[Ee]xternal data",
        "a weight cannot be read: its file beside the model is missing or too short, or its type is not known",
        "put the file with the weights next to the model, under the name the model gives it",
        InputFileError,
    ),
    _known(
        r"shiftIsAllZeros|[Nn]on-zero zero point",
        "the zero point is not 0; TensorRT knows symmetric quantization only",
        "`qdqtool repair` quantizes with zero point 0 (signed INT8)",
    ),
    _known(
        r"Scale coefficients must all be positive",
        "a scale is zero, negative or not a number",
        "calibrate again on samples that are not constant, and check the weights for NaN",
    ),
    _known(
        r"has type Int32 but must have type",
        "an INT32 tensor stands before DequantizeLinear, as onnxruntime writes for biases",
        "`qdqtool repair` stores biases as floats (onnxruntime: extra option QuantizeBias=False)",
    ),
    _known(
        r"Quantized constant .* is only allowed before DQ|only allowed before DQ",
        "an INT8 constant is used by something other than DequantizeLinear",
        "let every INT8 constant feed a DequantizeLinear, and give it at least one dimension",
    ),
    _known(
        r"HW-specific datatypes?: .*fp4",
        "FP4 is in the model and a target GPU has none",
        "build for sm120 or newer, or quantize to FP8 (sm89 or newer) or INT8",
    ),
    _known(
        r"HW-specific datatypes?: int4",
        "INT4 is in the model and a target GPU has none",
        "build for sm80 or newer, or store the weights as INT8",
    ),
    _known(
        r"odd tensor volume",
        "a weight holds an odd number of 4-bit values",
        "pad its columns to an even number, store it as INT8, or leave it float",
    ),
    _known(
        r"HW-specific datatypes?: fp8|fp8.*not supported",
        "FP8 is in the model and a target GPU has none",
        "build for sm89 or newer, or quantize to INT8",
    ),
    _known(
        r"Turing \(SM75\): FP32 GEMM is not supported",
        "a float matrix product is FP32, for which SM75 has no kernel",
        "--set insert.types=fp16",
    ),
    _known(
        r"no optimization profile has been defined",
        "an input has dynamic dimensions and no shapes were given",
        "give --min-shapes, --opt-shapes and --max-shapes (build.opt_shapes in a recipe), as input:1x3x224x224",
    ),
    _known(
        r"graphScope\.cpp.*kUNDEFINED",
        "the builder's analysis of an If in a branch of another fails",
        _DECIDE_IF,
    ),
    _known(
        r"infer the shape of scan output .* since no trip limit was set",
        "the Loop has no trip count, and collects values of every pass: how many is not known when the engine is built",
        "export the loop with a trip count, its first input; recurrent layers, as LSTM or GRU nodes",
    ),
    _known(
        r"Must have inputs with equal ranks when condition is not a build-time constant",
        "the branches of an If have different ranks",
        _DECIDE_IF,
    ),
    _known(
        r"out of memory|bad_alloc|OutOfMemory|insufficient memory",
        "the builder ran out of memory",
        "free memory, or build for smaller shapes",
    ),
    _known(
        r"an illegal memory access|unspecified launch failure|misaligned address",
        "a kernel crashed on the GPU while it was tried, and everything after it failed too",
        "update TensorRT and the driver; leave out tactics with --flags --tacticSources, or exclude the node",
    ),
    _known(
        r"implementation for node .*(?:insufficient workspace|increas\w+ the workspace)",
        "there is no kernel for this node that fits into the workspace",
        "give it more: --flags=--memPoolSize=workspace:8GiB",
    ),
    _NEVER,
    _NO_KERNEL,
    _known(
        r"No space left on device",
        "the disk is full",
        "free some space and build again",
    ),
    _known(
        r"MyelinCheckException|myelin",
        "the optimizer failed on a check of its own",
        "run `qdqtool lint` on the model, which knows some of these; update the builder; if it stays, find the node by excluding nodes from placement",
    ),
)
"""Sentences in the order they are tried."""


def refusal(mistakes: Sequence[Mistake], messages: Sequence[str], *, where: str, log: str) -> QdqError:
    """The error for a model that was refused.

    `mistakes` come from the parser, `messages` are the builder's error lines, `log` is where all lines are.
    """
    if mistakes:
        # The parser's own complaint about a constant does not say why it failed; its log does.
        typeless = any(_NO_TYPE.pattern.search(message) for message in messages)
        return _parse_error(mistakes, where=where, log=log, known=_NO_TYPE if typeless else None)
    spoken = [message for message in messages if not is_noise(message)] or list(messages)
    text = spoken[0] if spoken else "the builder gave no engine and no reason"
    known = _understand("\n".join(spoken))
    if known is None:
        return BuildError(f"the builder refused: {clean(text)}", fix=f"read the end of {log}", where=where)
    if known.kind is not BuildError:
        return known.kind(known.what, fix=known.fix, where=where)
    node = _node_in("\n".join(spoken))
    place = f"node {node!r}: " if node else ""
    what = f"{place}{known.what} ({clean(text)})"
    if known is _NO_KERNEL:
        return NoKernelError(what, fix=known.fix, where=where, node=node)
    return BuildError(what, fix=known.fix, where=where)


def is_noise(message: str) -> bool:
    """Whether a message only says that this machine has no usable GPU driver."""
    return bool(_NOISE.search(message)) and message.count("\n") == 0


def clean(message: str) -> str:
    """One line a person can read: noise lines and source positions removed, at most 300 characters."""
    lines = [line.strip() for line in message.splitlines() if line.strip() and not _NOISE.search(line)]
    text = " ".join(lines or [message.strip()])
    text = re.sub(r"\s*In \w+ at \S+?:\d+\)", ")", text)
    text = re.sub(r"^\w+\.(?:cpp|h|hpp):\d+: ", "", text)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _parse_error(
    mistakes: Sequence[Mistake], *, where: str, log: str, known: Known | None = None
) -> QdqError:
    first = mistakes[0]
    more = f" (and {len(mistakes) - 1} more, see {log})" if len(mistakes) > 1 else ""
    place = f"node {first.node!r} ({first.op}): " if first.node or first.op else ""
    if first.op in NOT_IMPORTED or _unsupported(first):
        what = f"{place}the operator {first.op} is not supported by the builder{more}"
        fix = NOT_IMPORTED.get(first.op, "replace the operator, or cut the model before it")
        return BuildError(what, fix=fix, where=where)
    known = known or _understand(f"{first.code}: {first.text}")
    if known is None:
        text = f"{place}{clean(_sentence(first.text) or first.text)} [{first.code}]{more}"
        return BuildError(text, fix=f"{_way_out(first.op)}; details in {log}", where=where)
    return known.kind(f"{place}{known.what}{more}", fix=known.fix, where=where)


def _unsupported(mistake: Mistake) -> bool:
    """Whether it is the operator that is not known, and not something about this node of it."""
    if re.search(r"[Pp]lugin not found|was not found in plugin", mistake.text):
        return True
    return mistake.code == "UNSUPPORTED_NODE" and not _sentence(mistake.text)


def _sentence(text: str) -> str:
    found = _SENTENCE.search(text)
    return (found["quoted"] or found["spoken"]) if found else ""


def _way_out(op: str) -> str:
    """What can be done about a node that the parser refuses: placement decides about Q/DQ and what they stand before only."""
    if op in QDQ | PRODUCTS:
        return "change this node, or exclude it from placement"
    if op:
        return "change this node where the model is exported, or cut the model before it"
    return "build the float model: where that is refused in the same words, the export is at fault"


def last_parsed(log: str) -> tuple[str, str]:
    """Name and operator of the node that the parser read last, from a verbose log; empty where it says none."""
    found = [*_PARSED.finditer(log)]
    return (found[-1]["name"], found[-1]["op"]) if found else ("", "")


def _understand(text: str) -> Known | None:
    return next((known for known in KNOWN if known.pattern.search(text)), None)


def _node_in(text: str) -> str:
    """The engine's name for the node that an error is about, which may hold brackets, commas and dots itself."""
    found = re.search(r"for node (.+)$", text, re.MULTILINE)
    if found is None:
        return ""
    name = re.split(r" due to |, try |\. See ", found[1])[0].rstrip()
    if name.endswith(")") and name.count(")") > name.count("("):
        name = name[:-1]
    return name.removesuffix(".")
