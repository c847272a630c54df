"""Edits of the Q/DQ of single node inputs; changes by insertion, repair and searches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from pydantic import Field

from qdqtool.core.comparison import Comparison
from qdqtool.core.journal import Journal, TrialOutcome, TrialRecord
from qdqtool.core.placement import Slot
from qdqtool.core.showing import Displayable
from qdqtool.core.tensors import INT8, NamedFormat


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotEdit:
    """A new quantization for one input of a node, or its removal.

    Attributes:
        slot: the input.
        scales: quantization steps, a single step or one per channel. (): the input becomes float. None: the steps are
            measured.
        axis: the channel axis of several scales.
        format: how values are stored; ignored if the input becomes float.
        most: upper limit for a measured scale; near the limit the edit is not useful. None: no limit.
    """

    slot: Slot
    scales: tuple[float, ...] | None = ()
    axis: int | None = None
    format: NamedFormat = INT8
    most: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None

    @property
    def measured_scales(self) -> tuple[float, ...]:
        """The scales of the new quantization; () if the input becomes float.

        Raises:
            ValueError: they are still to be measured.
        """
        if self.scales is None:
            raise ValueError(f"the scale of {self.slot} has not been measured")
        return self.scales

    def __str__(self) -> str:
        if self.scales == ():
            return f"{self.slot} float"
        several = self.axis is not None
        return f"{self.slot} {self.format}" + (f" per channel (axis {self.axis})" if several else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotChange:
    """Change of one input's quantization between two models.

    Attributes:
        slot: the input.
        before: how it was quantized, in words: "float", "int8 0.05", "uint8 0.02 zero point 128".
        after: how it is now.
    """

    slot: Slot
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeGain:
    """Measured time of an engine, and the time that it saves; all in milliseconds.

    Attributes:
        ms: median time of an inference.
        gain: time saved over the engine before.
        low, high: 95 % interval of the time saved; None after too few rounds.
    """

    ms: float
    gain: float
    low: float | None
    high: float | None


class FixOutcome(str, Enum):
    """Outcome of a trial of a fix: kept, undone or not tried."""

    KEPT = "kept"
    UNDONE = "undone"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """Figures of an engine and its model in a search for fixes: INT8 nodes, kernels, bytes, accuracy.

    Attributes:
        int8: compute nodes that run INT8.
        compute: compute nodes of the model.
        kernels: all kernels of the engine.
        conversions: kernels that only quantize, dequantize, cast or reformat.
        activation_bytes: bytes that kernels read and write at run time, as dumped; None if not known.
        accuracy: of the Q/DQ model against the float one; None if it was not or cannot be measured.
    """

    int8: int
    compute: int
    kernels: int
    conversions: int
    activation_bytes: int | None
    accuracy: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FixTrial:
    """Trial of one suggested fix.

    Attributes:
        subject: the ONNX node or engine layer that the finding is about.
        edit: the change in words.
        outcome: whether it stayed.
        why: reason from the builder and the samples.
        edits: the edits themselves.
        rule: the rule that proposed it; "" for an effect that only a build showed.
        before: the engine without the edit; None if no engine was built.
        after: the engine with the edit, and with all other edits of the same build.
        settings: recipe values that make the same change in a new run, as values for `--set`; () if there are none.
        also: more nodes that the same edit is for.
        time: measured time of the engine with it; None if it was not measured, or is bound by kernel launches.
    """

    subject: str
    edit: str
    outcome: FixOutcome
    why: str
    edits: tuple[SlotEdit, ...] = ()
    rule: str = ""
    before: Metrics | None = None
    after: Metrics | None = None
    settings: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()
    also: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()
    time: Annotated[TimeGain | None, Field(exclude_if=lambda value: value is None)] = None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class FixReport(Displayable):
    """All trials of `qdqtool fix` in order.

    Attributes:
        model: file name of the model.
        trials: tried edits, kept or undone, and edits without a trial because of the budget.
        before: the engine before all trials.
        after: the engine in the new run folder.
        builds: engines that were built for trials.
        budget: largest number of builds.
        metric: the metric of `accuracy`: "top1" in percent, or "sqnr_db"; "" if no accuracy was measured.
        max_drop: allowed loss, in its unit.
        notes: what a reader must know to trust the figures.
        slots: every input with a changed quantization.
        host: machine that measured the times, as typed; "" if kernels and bytes decided.
    """

    model: str
    trials: tuple[FixTrial, ...]
    before: Metrics
    after: Metrics
    builds: int
    budget: int
    metric: str
    max_drop: float
    notes: tuple[str, ...] = ()
    slots: tuple[SlotChange, ...] = ()
    host: Annotated[str, Field(exclude_if=lambda value: not value)] = ""

    @property
    def journal(self) -> Journal:
        """The trials as rows of a journal. Fewer kernels count as a gain; if time was measured, less time."""
        return Journal(
            search="fixes",
            objective=f"measured time of the engine ({self.host})" if self.host else "kernels of the engine",
            unit="ms" if self.host else "kernels",
            trials=tuple(_record(trial, timed=bool(self.host)) for trial in self.trials),
        )

    def count(self, outcome: FixOutcome) -> int:
        """Return the number of fixes with this outcome."""
        return sum(trial.outcome is outcome for trial in self.trials)


_OUTCOMES = {
    FixOutcome.KEPT: TrialOutcome.KEPT,
    FixOutcome.UNDONE: TrialOutcome.REJECTED,
    FixOutcome.NOT_TRIED: TrialOutcome.NOT_TRIED,
}


def _record(trial: FixTrial, *, timed: bool) -> TrialRecord:
    before, after = trial.before, trial.after
    more = f" and {len(trial.also)} more" if trial.also else ""
    record = TrialRecord(
        what=": ".join(filter(None, (f"{trial.subject}{more}", trial.edit))),
        outcome=_OUTCOMES[trial.outcome],
        why=trial.why,
        settings=trial.settings,
    )
    if timed:
        time = trial.time
        return (
            record
            if time is None
            else replace(record, value=time.ms, gain=time.gain, low=time.low, high=time.high)
        )
    return replace(
        record,
        value=after.kernels if after else None,
        gain=before.kernels - after.kernels if before and after else None,
    )


# --- repair ----------------------------------------------------------------------------------------------------------
# Results of a repair of a third-party Q/DQ model: the changes and their cost.


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change that `repair` made to a model.

    Attributes:
        rule: the rule whose fix it is.
        subject: the node or tensor that was changed.
        what: the change in words.
        reason: effect of the unchanged node or tensor in TensorRT.
        error: largest difference of a constant's values, as a share of the largest magnitude; 0 if the change is exact;
            None if it depends on the data, which the comparison measures.
        edits: if the change only gives inputs another quantization: these inputs. The caller of the rule applies
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
    """A problem that `repair` cannot fix from the model alone.

    Attributes:
        subject: the node.
        what: the problem in words.
        fix: what to do.
        refused: whether TensorRT rejects the model because of the problem; lint then reports an error.
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
        notes: changes made when the model was opened.
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
