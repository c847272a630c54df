"""Results of an audit and of lint: verdicts on nodes, and findings with reason, fix and evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from pydantic import Field

from qdqtool.core.claims import Claim
from qdqtool.core.engine import Certainty
from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import DType

# --- verdicts and findings -------------------------------------------------------------------------------------------


class Severity(str, Enum):
    """Severity of a finding; `rank` orders severities."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """Order of the severities: 0 for info, 1 for warning, 2 for error."""
        return ("info", "warning", "error").index(self.value)


class Verdict(str, Enum):
    """How a compute node of the model runs in the engine: INT8, float, part of a region, removed, ..."""

    INT8 = "int8"
    FP16 = "fp16"
    BF16 = "bf16"
    FP32 = "fp32"
    FP8 = "fp8"
    FP4 = "fp4"
    PROLOGUE = "dequantized in the prologue"
    ATTENTION = "inside a fused attention"
    ABSORBED = "absorbed"
    NOT_FOUND = "not found"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeVerdict:
    """The precision of one compute node in the engine, and the reason.

    Attributes:
        node: ONNX node name.
        op: ONNX operator type.
        verdict: how the node runs.
        precision: type of the arithmetic; for ATTENTION that of the fused kernel's inputs.
        requested: whether placement asked for INT8 on every input that matters.
        layers: engine layers that hold it.
        reason: why it is not INT8; "" if it is.
        fix: what to do about it; "" if it is INT8.
        certainty: stated by the dump, or inferred.
        asked: the format that the Q/DQ nodes ask for: "fp8", "int4-weights" for weights alone, or "float".
        realised: arithmetic of the kernel in these words; "unknown"; or weights "dequantized before the kernel".
        bytes_lost: bytes written and read again if weights are dequantized before the kernel; else None.
        claims: the parts of the reason and the fix that a build can contradict.
    """

    node: str
    op: str
    verdict: Verdict
    precision: DType
    requested: bool
    layers: tuple[str, ...] = ()
    reason: str = ""
    fix: str = ""
    certainty: Certainty = Certainty.STATED
    asked: str = "float"
    realised: str = "unknown"
    bytes_lost: int | None = None
    claims: Annotated[tuple[Claim, ...], Field(exclude_if=lambda value: not value)] = ()

    @property
    def is_as_asked(self) -> bool:
        """True if the engine computes in the format that the Q/DQ nodes ask for; always true for a float node."""
        return self.asked in {"float", self.realised}

    @property
    def is_quantized(self) -> bool:
        """True if the node needs its Q/DQ: it multiplies in a low-bit type, or reads stored weights as requested."""
        return self.precision.is_quantized or (self.is_as_asked and self.asked != "float")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Evidence for a claim: a file of the run folder and a place in it."""

    file: str
    place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One problem or remark of an audit.

    Attributes:
        code: stable identifier of the check ("QDQ201").
        check: the check's file name.
        severity: how much it matters.
        subject: the ONNX node, tensor or engine layer it is about.
        reason: the observation, and its cost.
        fix: what to do about it.
        bytes: activation bytes at stake, estimated from the dump; None if unknown.
        evidence: where to look.
        hazard: the problem with findings of this kind, in one sentence.
        claims: the parts of the reason and the fix that a build can contradict.
    """

    code: str
    check: str
    severity: Severity
    subject: str
    reason: str
    fix: str
    bytes: int | None = None
    evidence: tuple[Evidence, ...] = ()
    hazard: str = ""
    claims: Annotated[tuple[Claim, ...], Field(exclude_if=lambda value: not value)] = ()


# --- accepted findings -----------------------------------------------------------------------------------------------
# `--ignore CODE=reason`: findings that a user accepts, in the one grammar of `lint`, `audit`, `fix` and `audit.ignore`.

_CODE = re.compile(r"[A-Za-z]{3}\d{3}")


def waivers(entries: Iterable[str]) -> dict[str, str]:
    """Parse entries such as "QDQ120=reason" into a reason by code or name; "" for an entry without a reason.

    Codes may be in lower case.
    """
    reasons = {}
    for entry in entries:
        word, _, reason = (part.strip() for part in entry.partition("="))
        reasons[word.upper() if _CODE.fullmatch(word) else word] = reason
    return reasons


# --- lint ------------------------------------------------------------------------------------------------------------
# Results of lint: findings about a Q/DQ model before any build.


@dataclass(frozen=True, kw_only=True, slots=True)
class LintFinding:
    """A problem in a Q/DQ graph that costs accuracy or speed, or that makes the build fail.

    Attributes:
        code: stable identifier of the rule ("QDQ122").
        rule: the rule's file name.
        severity: error if the build fails, warning if INT8 is lost or kernels are added, info for the rest.
        node: the node to look at.
        reason: what is wrong.
        effect: consequence in TensorRT.
        fix: what to change.
        waiver: why the user accepts it; "" if not accepted.
        causes: names of the errors that a builder prints for an error of this code, in the table of causes.
    """

    code: str
    rule: str
    severity: Severity
    node: str
    reason: str
    effect: str
    fix: str
    waiver: str = ""
    causes: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class LintReport(Displayable):
    """All findings of one model for one builder, in graph order.

    Attributes:
        target: "rtx", or the TensorRT release the rules were asked for ("8.6", "10", "11").
        findings: what is wrong and not waived.
        waived: findings that the user accepts, each with its waiver.
        pairs: Q/DQ pairs that were looked at.
        notes: remarks of the model's reader.
        origin: the tool that quantized the model, with versions and digests if the model names them; "" if unknown.
    """

    target: str
    findings: tuple[LintFinding, ...]
    waived: tuple[LintFinding, ...] = ()
    pairs: int = 0
    notes: tuple[str, ...] = ()
    origin: str = ""


# --- noop ------------------------------------------------------------------------------------------------------------
# Check whether an engine that is called INT8 really computes in INT8.


class NoOpVerdict(str, Enum):
    """The verdict on an INT8 engine: all INT8, partly INT8, another low-bit format, float (no-op), or unknown."""

    INT8 = "int8"
    PARTLY = "partly int8"
    OTHER = "another format"
    NO_OP = "no-op"
    UNKNOWN = "unknown"


class Indication(str, Enum):
    """Whether an observation suggests that an engine called INT8 computes in INT8 or in float."""

    INT8 = "int8"
    NO_OP = "no-op"
    NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One observation about an engine that is called INT8.

    Attributes:
        text: the observation with its figures.
        points: the verdict that it supports.
    """

    text: str
    points: Indication


@dataclass(frozen=True, kw_only=True, slots=True)
class NoOpReport:
    """The verdict on an engine that is called INT8, and all observations for it.

    Attributes:
        verdict: verdict from the kernels; if they show nothing, from size and outputs.
        int8: compute kernels that multiply in INT8.
        compute: all compute kernels.
        unknown: compute kernels whose type is not known.
        others: compute kernels in other formats than float, by format ("fp8", "int4-weights").
        signs: the observations, those on kernels first.
    """

    verdict: NoOpVerdict
    int8: int
    compute: int
    unknown: int
    signs: tuple[Observation, ...]
    others: dict[str, int] = field(default_factory=dict)


# --- audit -----------------------------------------------------------------------------------------------------------
# The result of auditing an engine.


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCounts:
    """The number of kernels in an engine, and the bytes that move between them.

    Attributes:
        kernels: all kernels; signals, waits and shape calls are not kernels.
        compute: kernels that hold a convolution, a matrix product or an attention.
        qdq: kernels that only quantize, dequantize, cast or reformat.
        activation_bytes_dumped: sum over kernels of run-time inputs and outputs, as dumped.
        activation_bytes_fused: activation bytes if each compute kernel's epilogue is fused into it (estimated);
            both None when a shape or type is unknown or dynamic.
    """

    kernels: int
    compute: int
    qdq: int
    activation_bytes_dumped: int | None
    activation_bytes_fused: int | None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Audit(Displayable):
    """Verdicts for every compute node, findings, and counts."""

    verdicts: tuple[NodeVerdict, ...]
    findings: tuple[Finding, ...]
    counts: KernelCounts
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class DataReport(Displayable):
    """Findings about the data, and the figures behind the findings.

    Attributes:
        findings: the most severe first; codes DATnnn.
        calibration: how many calibration samples there are.
        evaluation: how many evaluation samples; None if the calibration samples were used.
        spread: relative difference of the ranges of two halves of the calibration samples, for the median tensor;
            None for fewer than two samples.
        spread_samples: how many samples were split for that.
    """

    findings: tuple[Finding, ...]
    calibration: int
    evaluation: int | None
    spread: float | None
    spread_samples: int
