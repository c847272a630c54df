"""Differences between two runners on the same samples."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from pydantic import Field

from qdqtool.core.showing import Displayable


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """One metric of one output over all samples. If it is undefined, `value` is None and `note` says why."""

    metric: str
    value: float | None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqnrEstimate:
    """Signal to noise of outputs over all samples.

    Attributes:
        output: the name of the first, and how many more there are.
        sqnr_db: energy of the reference over that of the difference, in dB.
        low: lower end of the 95 % interval over samples; None for fewer than two.
        high: upper end.
    """

    output: str
    sqnr_db: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputComparison:
    """All metrics of one model output."""

    output: str
    measures: tuple[Measure, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartComparison:
    """Signal to noise of one inner part of an output, such as the boxes or the scores of a detector.

    Attributes:
        output: the output's name.
        tensors: the part, one quantity: several if feature maps hold it, each of its own size.
        chosen: the output holds some of its values, which the network chose and sorted; otherwise all of them.
        sqnr_db: energy of the reference over that of the difference, in dB; None if it is undefined, and `note` says why.
    """

    output: str
    tensors: tuple[str, ...]
    chosen: bool
    sqnr_db: float | None
    note: str = ""


BOXES: Final = "boxes"
"""The task metric of a detector: mean F1 score per image of the candidate's boxes against the reference's boxes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskAccuracy:
    """A task metric of reference and candidate on the compared samples.

    Attributes:
        metric: "top1", "top5", "agreement", `BOXES` ...
        unit: "%" for shares.
        reference: of the first runner.
        candidate: of the second.
        low: lower end of the 95 % confidence interval of candidate - reference; None if not estimated.
        high: upper end.
        samples: samples used.
    """

    metric: str
    unit: str
    reference: float
    candidate: float
    samples: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleError:
    """Error of one sample: the SQNR in dB of its worst output."""

    sample: str
    output: str
    sqnr_db: float


class MismatchCause(str, Enum):
    """Reason for a difference between a candidate's output and an exact run of the Q/DQ graph."""

    SAME = "same"
    ROUNDING = "explained by rounding"
    FUSION = "explained by fusion"
    UNEXPLAINED = "not explained"


@dataclass(frozen=True, kw_only=True, slots=True)
class MismatchExplanation:
    """The verdict on one output's mismatch.

    Attributes:
        output: its name.
        cause: the verdict.
        sqnr_db: SQNR of the candidate against the Q/DQ graph; None if they are equal.
        nearest: which emulation is nearest to the candidate.
        nearest_db: how near that one is; None if they are equal.
        rounding_db: SQNR of the change that exact integer arithmetic and other valid roundings alone move this output;
            None if they do not move it.
    """

    output: str
    cause: MismatchCause
    sqnr_db: float | None
    nearest: str
    nearest_db: float | None
    rounding_db: float | None


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Comparison(Displayable):
    """Comparison of a candidate with a reference.

    Attributes:
        reference: what the first runner is, in words.
        candidate: what the second runner is.
        samples: number of samples that both ran.
        meaningful: False when the samples were random.
        outputs: metrics per output.
        task: task metrics, if there are labels.
        worst: the samples with the lowest SQNR, worst first.
        notes: what a reader must know to trust the figures.
        tensors: metrics per intermediate tensor in graph order, if the models were watched inside.
        explanations: why the outputs differ, if requested.
        sqnr: signal to noise of all outputs, or of the one that the recipe names, each weighing the same, and parts
            instead of outputs that have some; None if the two are equal, or both silent.
        provider: the execution provider of onnxruntime on which models ran; not written for its CPU.
        parts: boxes and scores in one output, and what outputs were chosen from; () if models were not looked into.
    """

    reference: str
    candidate: str
    samples: int
    meaningful: bool
    outputs: tuple[OutputComparison, ...]
    task: tuple[TaskAccuracy, ...] = ()
    worst: tuple[SampleError, ...] = ()
    notes: tuple[str, ...] = ()
    tensors: tuple[OutputComparison, ...] = ()
    explanations: tuple[MismatchExplanation, ...] = ()
    provider: Annotated[str, Field(exclude_if=lambda provider: provider == "CPUExecutionProvider")] = (
        "CPUExecutionProvider"
    )
    sqnr: Annotated[SqnrEstimate | None, Field(exclude_if=lambda value: value is None)] = None
    parts: Annotated[tuple[PartComparison, ...], Field(exclude_if=lambda value: not value)] = ()
