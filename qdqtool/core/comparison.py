"""Differences between two runners on the same samples, and how severe a loss of accuracy is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from pydantic import Field

from qdqtool.core.findings import Severity
from qdqtool.core.showing import Displayable
from qdqtool.core.wording import count_noun, metric


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """One metric of one output over all samples. If it is undefined, `value` is None and `note` says why."""

    metric: str
    value: float | None
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SqnrEstimate:
    """Signal-to-quantization-noise ratio (SQNR) of outputs over all samples.

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
    """All metrics of one model output over the compared samples."""

    output: str
    measures: tuple[Measure, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartComparison:
    """SQNR of one part of an output, such as the boxes or the scores of a detector.

    Attributes:
        output: the output's name.
        tensors: the tensors of the part. All hold one quantity; there are several if feature maps hold it, each in
            its own size.
        chosen: whether the network selected and sorted some of these values for the output; otherwise the output has
            all values.
        sqnr_db: energy of the reference over that of the difference, in dB; None if it is undefined, and `note` says why.
    """

    output: str
    tensors: tuple[str, ...]
    chosen: bool
    sqnr_db: float | None
    note: str = ""


BOXES: Final = "boxes"
"""The task metric of a detector: mean F1 score per image of the candidate's boxes against the reference's boxes."""

MAP50: Final = "mAP50"
"""The task metric of a detector with labelled boxes: mean average precision at an overlap of 0.5."""
MAP: Final = "mAP50-95"
"""Mean average precision over overlaps of 0.5 to 0.95."""
MASK_MAPS: Final = ("mask mAP50", "mask mAP50-95")
"""Mean average precision of masks, with labelled outlines: at an overlap of 0.5, and over 0.5 to 0.95."""
KEYPOINT_MAPS: Final = ("keypoint mAP50", "keypoint mAP50-95")
"""Mean average precision of keypoints: the similarity to labelled keypoints (OKS of COCO) takes the place of the overlap."""
MASKS: Final = "masks"
"""The task metric of the masks of a detector's boxes: mean per image, against those of the reference."""
KEYPOINTS: Final = "keypoints"
"""The task metric of the keypoints of a detector's boxes: mean per image, against those of the reference."""
_OF_BOXES: Final = (BOXES, MASKS, KEYPOINTS)

PIXELS: Final = "pixels"
"""The task metric of a segmentation: share of pixels with the class that the reference gives them."""
POSITIONS: Final = "positions"
"""The task metric of classes along a line: share of positions with the class that the reference gives them."""
CHARACTERS: Final = "characters"
"""The task metric of OCR: 1 - CER, with the reference's text as the truth."""
AGAINST_REFERENCE: Final = frozenset({*_OF_BOXES, PIXELS, POSITIONS, CHARACTERS})
"""Metrics for which the reference is right by definition: every change lowers them, so no interval says whether it is chance."""


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
    """Reason for the difference between a candidate's output and an exact emulation of the Q/DQ graph."""

    SAME = "same"
    ROUNDING = "explained by rounding"
    FUSION = "explained by fusion"
    UNEXPLAINED = "not explained"


@dataclass(frozen=True, kw_only=True, slots=True)
class MismatchExplanation:
    """Explanation of the difference of one output: the cause, and the figures that support it.

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


GIVEN, GUESSED = "given", "guessed, because no source states the value"
"""Sources of an assumption: the user, or none. Other sources are "read from ..." and "guessed, and tried on ..."."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """A property of the inputs that a result depends on, such as the colour order: its value and source.

    Attributes:
        what: subject: "scale", "size", "colour order", "shape of x" ...
        value: in words.
        source: "given", "read from ..." or "guessed ...".
    """

    what: str
    value: str
    source: str

    @property
    def is_guessed(self) -> bool:
        """True if the value was guessed, neither given by the user nor read from a file."""
        return self.source.startswith("guessed")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Comparison(Displayable):
    """Comparison of the outputs of two models, a candidate and a reference.

    Attributes:
        reference: description of the first runner.
        candidate: description of the second runner.
        samples: number of samples that both ran.
        meaningful: False when the samples were random.
        outputs: metrics per output.
        task: task metrics, if there are labels.
        worst: the samples with the lowest SQNR, worst first.
        notes: remarks that a reader needs to trust the figures.
        tensors: metrics per intermediate tensor in graph order, if the models were watched inside.
        explanations: why the outputs differ, if requested.
        sqnr: signal to noise of all outputs with equal weights, or of the output that the recipe names. If an output
            has parts, its parts count instead. None if reference and candidate are equal, or both are zero.
        provider: the execution provider of onnxruntime on which models ran; not written for its CPU.
        parts: boxes and scores in one output, and the values before a selection; () if the models were not analysed.
        one_answer: whether the reference, a classifier, gives one class to all samples: its inputs may be wrong.
        assumptions: the preparation of pictures with its sources; () for arrays, and in a run, whose report has it.
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
    one_answer: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    assumptions: Annotated[tuple[Assumption, ...], Field(exclude_if=lambda value: not value)] = ()

    def headline(self) -> str:
        """One line about the comparison: both models, the first task metric and the SQNR."""
        task = [
            f"{metric(entry.metric)} {entry.reference:.1f} -> {entry.candidate:.1f} {entry.unit}".rstrip()
            for entry in self.task[:1]
        ]
        levels = [
            entry.value
            for output in self.outputs
            for entry in output.measures
            if entry.metric == "sqnr_db" and entry.value is not None
        ]
        noise = [f"SQNR {min(levels):.1f} dB"] if levels else []
        random = [] if self.meaningful else ["random samples"]
        about = ", ".join([*task, *noise, count_noun(self.samples, "sample"), *random])
        return f"{self.candidate} against {self.reference}: {about}"


# --- loss ------------------------------------------------------------------------------------------------------------
# Accuracy loss of a comparison, and its severity as a finding.


POINTS, MANY_POINTS = 1.0, 5.0
BOX_POINTS, MANY_BOX_POINTS = 5.0, 20.0
DECIBELS, FEW_DECIBELS = 15.0, 8.0
"""Limits for a warning and for an error: points of a task metric, points of the boxes metric, and dB of SQNR."""


def is_lost(comparison: Comparison) -> bool:
    """Return True if the accuracy loss is large enough to search for the nodes that cause it."""
    return comparison.meaningful and loss(comparison)[0] is not None


def loss(comparison: Comparison) -> tuple[Severity | None, str]:
    """Return the severity of an accuracy loss, and the loss in words. The severity is None if it is no finding."""
    if comparison.task:
        losses = [_of_task(task) for task in decisive(comparison)]
        return max(losses, key=lambda judged: _ORDER.index(judged[0]))
    levels = _levels(comparison)
    worst = min(levels, key=lambda level: level.decibel, default=None)
    if worst is None or worst.decibel >= DECIBELS:
        return None, ""
    words = f"{worst.words} has {worst.decibel:.1f} dB of signal to noise (SQNR)"
    # The other outputs of a network may be unused.
    first = comparison.outputs[0].output
    is_lost = any(level.decibel < FEW_DECIBELS for level in levels if level.output == first)
    return (Severity.ERROR if is_lost else Severity.WARNING), words


_ORDER = (None, Severity.WARNING, Severity.ERROR)


def _of_task(task: TaskAccuracy) -> tuple[Severity | None, str]:
    drop = task.reference - task.candidate
    is_real = task.high is not None and task.high < 0
    name = "the share of boxes that both find" if task.metric == BOXES else metric(task.metric)
    words = f"{name} falls from {task.reference:.1f} to {task.candidate:.1f} {task.unit}"
    noticeable, large = compute_allowance(task)
    if exceeds(drop, large):
        return (Severity.ERROR if task.high is not None and task.high < -large else Severity.WARNING), words
    return (Severity.WARNING if is_real and exceeds(drop, noticeable) else None), words


def compute_allowance(task: TaskAccuracy) -> tuple[float, float]:
    """Return the loss of a task metric that is tolerated, and the loss that is an error, in points."""
    return (BOX_POINTS, MANY_BOX_POINTS) if task.metric in _OF_BOXES else (POINTS, MANY_POINTS)


def exceeds(drop: float, limit: float) -> bool:
    """Return True if a loss in points is above the limit by more than the rounding of a difference of percentages."""
    return drop > limit + 1e-9


def decisive(comparison: Comparison) -> tuple[TaskAccuracy, ...]:
    """Return the task metrics that decide whether a model is accurate.

    With labels, the boxes, masks and keypoints of the reference do not decide. Labelled boxes show nothing about
    masks and keypoints.
    """
    metrics = {task.metric for task in comparison.task}
    # the class of a detector's best box shows nothing about its other boxes
    labelled = {BOXES: MAP50, MASKS: MASK_MAPS[0], KEYPOINTS: KEYPOINT_MAPS[0]}
    deciding = {precise if precise in metrics else name for name, precise in labelled.items()}
    return tuple(task for task in comparison.task if task is comparison.task[0] or task.metric in deciding)


def sqnr(comparison: Comparison) -> float | None:
    """Return the SQNR in dB of the noisiest output, or output part; None if none was measured."""
    return min((level.decibel for level in _levels(comparison)), default=None)


def subject(comparison: Comparison) -> str:
    """Return the output that loses accuracy: the output that the task metric scores, else the noisiest output."""
    if not comparison.task:
        for level in sorted(_levels(comparison), key=lambda level: level.decibel):
            return level.output
    return comparison.outputs[0].output if comparison.outputs else "accuracy"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Level:
    """The SQNR in dB of an output or one of its parts, with its name."""

    output: str
    words: str
    decibel: float


def _levels(comparison: Comparison) -> list[_Level]:
    """Return all known SQNR levels. If an output has parts, the parts are returned instead of the output."""
    parts = {part.output for part in comparison.parts}
    levels = [
        (entry.output, f"output {entry.output!r}", each.value)
        for entry in comparison.outputs
        for each in entry.measures
        if each.metric == "sqnr_db" and entry.output not in parts
    ]
    levels += [
        (part.output, f"{part.tensors[0]!r} in output {part.output!r}", part.sqnr_db)
        for part in comparison.parts
    ]
    return [
        _Level(output=output, words=words, decibel=level)
        for output, words, level in levels
        if level is not None
    ]
