"""Results of a repair of a third-party Q/DQ model: the changes and their cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from qdqtool.core.comparison import Comparison
from qdqtool.core.fixes import SlotChange, SlotEdit
from qdqtool.core.showing import Displayable


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One thing that a repair changed.

    Attributes:
        rule: the rule whose fix it is.
        subject: the node or tensor that was changed.
        what: what was done to it.
        reason: what TensorRT would do with it.
        error: largest difference of a constant's values, as a share of the largest magnitude; 0 if the change is exact;
            None if it depends on the data, which the comparison measures.
        edits: the inputs to be quantized otherwise, where the change is nothing but that: who asks the rule applies
            them.
    """

    subject: str
    what: str
    reason: str
    error: float | None = None
    rule: str = ""
    edits: Annotated[tuple[SlotEdit, ...], Field(exclude=True)] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Remainder:
    """A problem that no repair can fix from the model alone.

    Attributes:
        subject: the node.
        what: what is wrong with it.
        fix: what to do.
        refused: whether TensorRT refuses the model for it: lint calls it an error.
    """

    subject: str
    what: str
    fix: str
    refused: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class RepairReport(Displayable):
    """All changes of a repair, in the order in which they were made.

    Attributes:
        model: file name of the model.
        changes: what was fixed.
        remaining: faults that were not fixed, and how to fix them.
        comparison: the model before against the model after, on the same samples; None if it was not asked for.
        notes: what opening the model changed.
        origin: the tool that quantized the model, as far as names show; "" if they do not.
        slots: every input with a changed quantization.
    """

    model: str
    changes: tuple[Change, ...]
    remaining: tuple[Remainder, ...] = ()
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    origin: str = ""
    slots: tuple[SlotChange, ...] = ()
