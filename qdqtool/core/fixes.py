"""Edits of a Q/DQ model that were tried against a real builder, and what became of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from qdqtool.core.placement import Slot
from qdqtool.core.quant_format import INT8, NamedFormat
from qdqtool.core.showing import Shown


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotEdit:
    """How one input is quantized from now on.

    Attributes:
        slot: the input.
        scales: quantization steps, one or one per channel; () leaves the input float.
        axis: the channel axis of several scales.
        format: how values are stored; of no account where the input becomes float.
    """

    slot: Slot
    scales: tuple[float, ...] = ()
    axis: int | None = None
    format: NamedFormat = INT8


class Outcome(str, Enum):
    """What became of a trial."""

    KEPT = "kept"
    UNDONE = "undone"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One suggested fix.

    Attributes:
        subject: the ONNX node or engine layer that the finding is about.
        edit: what was changed, in words.
        outcome: whether it stayed.
        why: what the builder and the samples said.
        edits: the edits themselves.
    """

    subject: str
    edit: str
    outcome: Outcome
    why: str
    edits: tuple[SlotEdit, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """How good an engine is.

    Attributes:
        int8: compute nodes that run INT8.
        compute: compute nodes of the model.
        kernels: all kernels of the engine.
        conversions: kernels that only quantize, dequantize, cast or reformat.
        activation_bytes: bytes that kernels read and write at run time, as dumped; None where not known.
        accuracy: of the Q/DQ model against the float one; None where it was not or cannot be measured.
    """

    int8: int
    compute: int
    kernels: int
    conversions: int
    activation_bytes: int | None
    accuracy: float | None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class FixReport(Shown):
    """All trials in their order.

    Attributes:
        model: file name of the model.
        trials: what was tried, kept and undone, and what was left for want of budget or of an edit.
        before: the engine as it was.
        after: the engine as it is in the new run folder.
        builds: engines that were built for trials.
        budget: how many there might be.
        metric: what `accuracy` is: "top1" in percent, or "sqnr_db"; "" where nothing was measured.
        max_drop: how far it might fall, in its unit.
        notes: what a reader must know to trust the figures.
    """

    model: str
    trials: tuple[Trial, ...]
    before: Metrics
    after: Metrics
    builds: int
    budget: int
    metric: str
    max_drop: float
    notes: tuple[str, ...] = ()

    def count(self, outcome: Outcome) -> int:
        """How many trials ended so."""
        return sum(trial.outcome is outcome for trial in self.trials)
