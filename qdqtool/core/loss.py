"""Accuracy loss of a comparison, and its severity as a finding."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.comparison import BOXES, Comparison, TaskAccuracy
from qdqtool.core.findings import Severity
from qdqtool.core.wording import metric

POINTS, MANY_POINTS = 1.0, 5.0
BOX_POINTS, MANY_BOX_POINTS = 5.0, 20.0
DECIBELS, FEW_DECIBELS = 15.0, 8.0
"""Limits for a warning and for an error: points of a task metric, points of the boxes metric, and dB of SQNR."""


def is_lost(comparison: Comparison) -> bool:
    """Return True if the accuracy loss is large enough to search for the nodes that cause it."""
    return comparison.meaningful and loss(comparison)[0] is not None


def loss(comparison: Comparison) -> tuple[Severity | None, str]:
    """Return the severity of the loss, and the loss in words. The severity is None if the loss is not worth a finding."""
    if comparison.task:
        found = [_of_task(task) for task in decisive(comparison)]
        return max(found, key=lambda one: _ORDER.index(one[0]))
    levels = _levels(comparison)
    worst = min(levels, key=lambda one: one.decibel, default=None)
    if worst is None or worst.decibel >= DECIBELS:
        return None, ""
    words = f"{worst.words} has {worst.decibel:.1f} dB of signal to noise (SQNR)"
    # What else a network returns may be of no use to anybody.
    first = comparison.outputs[0].output
    is_lost = any(one.decibel < FEW_DECIBELS for one in levels if one.output == first)
    return (Severity.ERROR if is_lost else Severity.WARNING), words


_ORDER = (None, Severity.WARNING, Severity.ERROR)


def _of_task(task: TaskAccuracy) -> tuple[Severity | None, str]:
    drop = task.reference - task.candidate
    is_real = task.high is not None and task.high < 0
    name = "the share of boxes that both find" if task.metric == BOXES else metric(task.metric)
    words = f"{name} falls from {task.reference:.1f} to {task.candidate:.1f} {task.unit}"
    some, many = allowed(task)
    if drop > many:
        return (Severity.ERROR if task.high is not None and task.high < -many else Severity.WARNING), words
    return (Severity.WARNING if is_real and drop > some else None), words


def allowed(task: TaskAccuracy) -> tuple[float, float]:
    """Return the tolerated loss in points of a task metric, and the loss in points from which it is an error."""
    return (BOX_POINTS, MANY_BOX_POINTS) if task.metric == BOXES else (POINTS, MANY_POINTS)


def decisive(comparison: Comparison) -> tuple[TaskAccuracy, ...]:
    """Return the task metrics that decide: the first one, and the boxes metric of a detector."""
    # the class of a detector's best box says nothing of the others
    return tuple(task for task in comparison.task if task is comparison.task[0] or task.metric == BOXES)


def sqnr(comparison: Comparison) -> float | None:
    """Return the SQNR in dB of the noisiest output, or output part; None if none was measured."""
    return min((one.decibel for one in _levels(comparison)), default=None)


def subject(comparison: Comparison) -> str:
    """Return the output with the loss: the scored output if there is a task, else the noisiest one."""
    if not comparison.task:
        for one in sorted(_levels(comparison), key=lambda one: one.decibel):
            return one.output
    return comparison.outputs[0].output if comparison.outputs else "accuracy"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Level:
    """SQNR in dB of an output or of one part of it, with its name for a sentence."""

    output: str
    words: str
    decibel: float


def _levels(comparison: Comparison) -> list[_Level]:
    """Return all known SQNR levels. An output with parts is represented by its parts only."""
    parts = {part.output for part in comparison.parts}
    found = [
        (entry.output, f"output {entry.output!r}", each.value)
        for entry in comparison.outputs
        for each in entry.measures
        if each.metric == "sqnr_db" and entry.output not in parts
    ]
    found += [
        (part.output, f"{part.tensors[0]!r} in output {part.output!r}", part.sqnr_db)
        for part in comparison.parts
    ]
    return [
        _Level(output=output, words=words, decibel=level)
        for output, words, level in found
        if level is not None
    ]
