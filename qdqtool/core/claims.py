"""Claims: the part of a printed sentence that a build can contradict.

A sentence without a claim is about something else, such as accuracy or the user's choice: nothing here proves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field


class Part(str, Enum):
    """The sentence that makes a claim."""

    REASON = "reason"
    FIX = "fix"
    COST = "cost"


class Says(str, Enum):
    """A statement about the engine, and the experiment that can contradict it."""

    MORE_KERNELS = "more_kernels"
    """With this node quantized the engine has more kernels."""
    NO_KERNEL = "no_kernel"
    """No kernel computes this node in the format, whatever Q/DQ is in front of it."""
    RUNS_QUANTIZED = "runs_quantized"
    """After the fix the node runs in the format."""
    FINDING_GONE = "finding_gone"
    """After the fix the audit no longer has this finding."""
    KERNELS = "kernels"
    """After the fix the engine has `kernels` kernels more; a negative number means fewer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claim of one sentence.

    Attributes:
        part: the sentence.
        says: the statement.
        kernels: the change of the number of kernels, for KERNELS.
    """

    part: Part
    says: Says
    kernels: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None


def of_reason(says: Says) -> Claim:
    """A claim of a reason."""
    return Claim(part=Part.REASON, says=says)


ADDS_A_KERNEL = of_reason(Says.MORE_KERNELS)
HAS_NO_KERNEL = of_reason(Says.NO_KERNEL)
RUNS_THEN = Claim(part=Part.FIX, says=Says.RUNS_QUANTIZED)
IS_GONE_THEN = Claim(part=Part.FIX, says=Says.FINDING_GONE)
