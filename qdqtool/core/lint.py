"""Results of lint: findings about a Q/DQ model before any build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from qdqtool.core.findings import Severity
from qdqtool.core.showing import Displayable


@dataclass(frozen=True, kw_only=True, slots=True)
class LintFinding:
    """One problem in a Q/DQ graph that costs accuracy or speed, or makes the build fail.

    Attributes:
        code: stable identifier of the rule ("QDQ122").
        rule: the rule's file name.
        severity: error if the build fails, warning if INT8 is lost or kernels are added, info for the rest.
        node: the node to look at.
        reason: what is wrong.
        effect: what TensorRT will do because of it.
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
        notes: what the reader of the model noticed.
        origin: the tool that quantized the model, with versions and digests if it names them; "" if nothing says it.
    """

    target: str
    findings: tuple[LintFinding, ...]
    waived: tuple[LintFinding, ...] = ()
    pairs: int = 0
    notes: tuple[str, ...] = ()
    origin: str = ""
