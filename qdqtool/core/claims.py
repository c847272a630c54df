"""Claims: the part of a printed sentence that an experiment can contradict.

A sentence without a claim is about a property that no engine shows, such as a measured time; no experiment proves it.
Reasons speak of the engine that was built, or of one in which the node is quantized. Fixes speak of the engine after
the fix.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from pydantic import Field


class Part(str, Enum):
    """The kind of sentence that makes a claim: a reason, a fix, or a cost."""

    REASON = "reason"
    FIX = "fix"
    COST = "cost"


class Assertion(str, Enum):
    """The statement that a claim makes. An experiment can show that the statement is false."""

    IS_FLOAT = "is_float"
    """No kernel of the engine multiplies this node or layer in a low-bit format."""
    STANDS_ALONE = "stands_alone"
    """The engine has this kernel, and the kernel does not multiply matrices."""
    FINISHES = "finishes"
    """At least a tenth of the engine's kernels only finish floats that low-bit kernels write."""
    FROM_CONSTANTS = "from_constants"
    """The engine has this kernel, and the kernel reads only constants, not run-time values."""
    WRITES_FLOAT = "writes_float"
    """The engine has this kernel, and the kernel writes floats."""
    READS_FLOAT = "reads_float"
    """A kernel that contains this node reads floats."""
    CHANGES_FORM = "changes_form"
    """The engine has this kernel, and its input and output differ in type or layout."""
    NO_HALF = "no_half"
    """The engine has kernels that read or write FP32, and no tensor in FP16 or BF16."""
    RANDOM = "random"
    """The samples of the run are random numbers."""
    IS_KEPT = "is_kept"
    """The named rule or setting is the only reason for the node to stay float. Without it, Q/DQ is placed."""
    QUANTIZES_MORE = "quantizes_more"
    """If this node is quantized, the model has more QuantizeLinear nodes."""
    LOSES_ACCURACY = "loses_accuracy"
    """If this node is quantized, an output of the model has more noise."""
    MORE_KERNELS = "more_kernels"
    """If this node is quantized, the engine has more kernels."""
    MORE_BYTES = "more_bytes"
    """If this node is quantized, the kernels read and write more bytes."""
    NO_KERNEL = "no_kernel"
    """No kernel computes this node in the format, whatever Q/DQ feeds the node."""
    RUNS_QUANTIZED = "runs_quantized"
    """After the fix the node runs in the format."""
    STAYS_FLOAT = "stays_float"
    """The node stays float even with the setting that the fix names."""
    HALF_THEN = "half_then"
    """After the fix the engine has tensors in FP16 or BF16."""
    FINDING_GONE = "finding_gone"
    """After the fix the audit no longer has this finding."""
    IS_TRIED = "is_tried"
    """The command tries edits of the subject of the finding, and reports the effect of each edit."""
    ANSWERS = "answers"
    """The command ends with an answer, not with an error."""
    STAYS_APART = "stays_apart"
    """If Q/DQ is removed around the softmax kernel, the engine has no fewer separate softmax kernels."""
    NOTHING_HELPS = "nothing_helps"
    """Q/DQ added to a float node, or removed around a kernel, never gives fewer bytes without more kernels."""
    QUANTIZED = "quantized"
    """After the fix the engine computes `nodes` more nodes in low-bit formats, give or take `hidden` nodes whose arithmetic an
    engine does not show; a negative number means fewer."""
    KERNELS = "kernels"
    """After the fix the engine has `kernels` more kernels; a negative number means fewer."""
    BYTES = "bytes"
    """After the fix the kernels read and write about `percent` more bytes, within five points; a negative number means fewer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claim about an engine or a model in a printed sentence, which an experiment can contradict.

    Attributes:
        part: the sentence.
        says: the statement.
        kernels: the change of the number of kernels, for KERNELS.
        nodes: the change of the number of nodes, for QUANTIZED.
        hidden: how far `nodes` may be off, because engines do not show the arithmetic of so many nodes.
        percent: the change of the number of bytes, for BYTES.
    """

    part: Part
    says: Assertion
    kernels: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    nodes: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None
    hidden: Annotated[int, Field(exclude_if=lambda value: value == 0)] = 0
    percent: Annotated[int | None, Field(exclude_if=lambda value: value is None)] = None


def of_reason(says: Assertion) -> Claim:
    """Return a claim that a reason makes, for example "the parser refuses the model"."""
    return Claim(part=Part.REASON, says=says)


def of_fix(says: Assertion) -> Claim:
    """Return a claim that a fix makes, for example "the node then runs INT8"."""
    return Claim(part=Part.FIX, says=says)


ADDS_A_KERNEL = of_reason(Assertion.MORE_KERNELS)
HAS_NO_KERNEL = of_reason(Assertion.NO_KERNEL)
IS_KEPT = of_reason(Assertion.IS_KEPT)
RUNS_THEN = of_fix(Assertion.RUNS_QUANTIZED)
IS_GONE_THEN = of_fix(Assertion.FINDING_GONE)
