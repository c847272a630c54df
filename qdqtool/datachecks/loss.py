"""How much accuracy a comparison lost, and whether that is worth a finding."""

from __future__ import annotations

from qdqtool.core.comparison import Comparison
from qdqtool.core.findings import Severity
from qdqtool.core.wording import metric

POINTS, MANY_POINTS = 1.0, 5.0
DECIBELS, FEW_DECIBELS = 15.0, 8.0
"""Points of a task metric, and dB of SQNR, that make a warning and an error."""


def is_lost(comparison: Comparison) -> bool:
    """Whether it is worth looking for the nodes that cost most."""
    return comparison.meaningful and loss(comparison)[0] is not None


def loss(comparison: Comparison) -> tuple[Severity | None, str]:
    """How severe the loss is, and the loss in words; None where it is not worth a finding."""
    if comparison.task:
        task = comparison.task[0]
        drop = task.reference - task.candidate
        is_real = task.high is not None and task.high < 0
        words = f"{metric(task.metric)} falls from {task.reference:.1f} to {task.candidate:.1f} {task.unit}"
        if drop > MANY_POINTS:
            return (Severity.ERROR if is_real else Severity.WARNING), words
        return (Severity.WARNING if is_real and drop > POINTS else None), words
    level = sqnr(comparison)
    if level is None or level >= DECIBELS:
        return None, ""
    words = f"the first output keeps {level:.1f} dB of signal to noise (SQNR)"
    return (Severity.ERROR if level < FEW_DECIBELS else Severity.WARNING), words


def sqnr(comparison: Comparison) -> float | None:
    """SQNR of the first output in dB; None where it was not measured."""
    measures = comparison.outputs[0].measures if comparison.outputs else ()
    return next((each.value for each in measures if each.metric == "sqnr_db"), None)
