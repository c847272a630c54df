"""Claims: the part of a printed sentence that an experiment can contradict.

A sentence without a claim is about something that no engine shows, such as a measured time: nothing here proves it. Reasons
speak of the engine that was built, or of one in which the node is quantized. Fixes speak of the engine after the fix.
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
    """A statement, and the experiment that can contradict it."""

    IS_FLOAT = "is_float"
    """No kernel of the engine multiplies this node or layer in few bits."""
    STANDS_ALONE = "stands_alone"
    """The engine has this kernel, and it multiplies no matrices."""
    FROM_CONSTANTS = "from_constants"
    """The engine has this kernel, and it reads nothing that is known at run time only."""
    WRITES_FLOAT = "writes_float"
    """The engine has this kernel, and it writes floats."""
    READS_FLOAT = "reads_float"
    """A kernel with this node reads floats."""
    NO_HALF = "no_half"
    """The engine multiplies floats and has no tensor in FP16 or BF16."""
    RANDOM = "random"
    """The samples of the run are random numbers."""
    IS_KEPT = "is_kept"
    """The rule or the setting that the reason names is all that keeps the node float: without it Q/DQ is placed."""
    QUANTIZES_MORE = "quantizes_more"
    """With this node quantized the model has more QuantizeLinear nodes."""
    LOSES_ACCURACY = "loses_accuracy"
    """With this node quantized an output of the model has more noise."""
    MORE_KERNELS = "more_kernels"
    """With this node quantized the engine has more kernels."""
    NO_KERNEL = "no_kernel"
    """No kernel computes this node in the format, whatever Q/DQ is in front of it."""
    RUNS_QUANTIZED = "runs_quantized"
    """After the fix the node runs in the format."""
    STAYS_FLOAT = "stays_float"
    """Also with the setting that the fix names the node is float."""
    HALF_THEN = "half_then"
    """After the fix the engine has tensors in FP16 or BF16."""
    FINDING_GONE = "finding_gone"
    """After the fix the audit no longer has this finding."""
    IS_TRIED = "is_tried"
    """The command tries edits at what the finding names, and says what each one changed."""
    ANSWERS = "answers"
    """The command ends with an answer, and not with an error."""
    NOTHING_HELPS = "nothing_helps"
    """Q/DQ on a float node, or none around a kernel, gives no engine with fewer bytes in as many kernels or fewer."""
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


def of_fix(says: Says) -> Claim:
    """A claim of a fix."""
    return Claim(part=Part.FIX, says=says)


ADDS_A_KERNEL = of_reason(Says.MORE_KERNELS)
HAS_NO_KERNEL = of_reason(Says.NO_KERNEL)
IS_KEPT = of_reason(Says.IS_KEPT)
RUNS_THEN = of_fix(Says.RUNS_QUANTIZED)
IS_GONE_THEN = of_fix(Says.FINDING_GONE)
