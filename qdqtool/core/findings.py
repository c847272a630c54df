"""Results of an audit: verdicts on nodes, and findings with reason, fix and evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field

from qdqtool.core.claims import Claim
from qdqtool.core.dtypes import DType
from qdqtool.core.engine import Certainty

# --- verdicts and findings -------------------------------------------------------------------------------------------


class Severity(str, Enum):
    """Severity of a finding; `rank` orders severities."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        """0 for info, 1 for warning, 2 for error."""
        return ("info", "warning", "error").index(self.value)


class Verdict(str, Enum):
    """The fate of a compute node in the engine."""

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
        verdict: what happened to it.
        precision: type of the arithmetic; for ATTENTION that of the fused kernel's inputs.
        requested: whether placement asked for INT8 on every input that matters.
        layers: engine layers that hold it.
        reason: why it is not INT8; "" if it is.
        fix: what to do about it; "" if it is INT8.
        certainty: stated by the dump, or inferred.
        asked: the format that the Q/DQ nodes ask for: "fp8", "int4-weights" for weights alone, or "float".
        realised: what the kernel does, in the same words, "unknown", or weights "dequantized before the kernel".
        bytes_lost: bytes written and read again where weights are dequantized before the kernel; else None.
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
        """True if the node multiplies in a low-bit type, or reads stored weights as asked. It then needs the Q/DQ before it."""
        return self.precision.is_quantized or (self.is_as_asked and self.asked != "float")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Evidence for a claim: a file of the run folder and a place in it."""

    file: str
    place: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One problem or remark that a user should see.

    Attributes:
        code: stable identifier of the check ("QDQ201").
        check: the check's file name.
        severity: how much it matters.
        subject: the ONNX node, tensor or engine layer it is about.
        reason: what happened and what it costs.
        fix: what to do about it.
        bytes: activation bytes at stake, if the check can tell (estimated from the dump).
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
    """Return reasons by code or name; "" for an entry without a reason. Codes may be written in lower case."""
    found = {}
    for entry in entries:
        word, _, reason = (part.strip() for part in entry.partition("="))
        found[word.upper() if _CODE.fullmatch(word) else word] = reason
    return found
