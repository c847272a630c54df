"""The table FP32, PTQ, QAT, with the uncertainty of each figure."""

from __future__ import annotations

from math import sqrt

from qdqtool.core.comparison import Comparison, TaskAccuracy
from qdqtool.core.qat import QatRow
from qdqtool.core.report import Report

_Z = 1.959964
"""Quantile of the normal distribution for 95 %."""


def wilson(percent: float, samples: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of independent samples, all in percent (Wilson, 1927)."""
    share, z2 = percent / 100, _Z * _Z
    middle = (share + z2 / (2 * samples)) / (1 + z2 / samples)
    reach = _Z / (1 + z2 / samples) * sqrt(share * (1 - share) / samples + z2 / (4 * samples * samples))
    return 100 * max(0.0, middle - reach), 100 * min(1.0, middle + reach)


def rows(ptq: Report, qat: Report) -> tuple[str, str, tuple[QatRow, ...]]:
    """Return the metric, the unit and the rows of two reports that compare with one float model."""
    first, second = ptq.comparison, qat.comparison
    assert first is not None
    assert second is not None
    if not first.task or not second.task:
        unit, found = "dB", (("PTQ", first, ptq), ("QAT", second, qat))
        return "sqnr_db", unit, tuple(_noise_row(*entry) for entry in found)
    task = first.task[0]
    low, high = wilson(task.reference, task.samples)
    original = QatRow(name="FP32", value=task.reference, low=low, high=high)
    quantized = (_row("PTQ", task, ptq), _row("QAT", second.task[0], qat))
    return task.metric, task.unit, (original, *quantized)


def _row(name: str, task: TaskAccuracy, report: Report) -> QatRow:
    low, high = wilson(task.candidate, task.samples)
    return QatRow(
        name=name,
        value=task.candidate,
        low=low,
        high=high,
        change=task.candidate - task.reference,
        change_low=task.low,
        change_high=task.high,
        nodes_int8=report.summary.nodes_int8,
        nodes_total=report.summary.nodes_total,
    )


def _noise_row(name: str, comparison: Comparison, report: Report) -> QatRow:
    measures = comparison.outputs[0].measures if comparison.outputs else ()
    value = next((entry.value for entry in measures if entry.metric == "sqnr_db"), None)
    return QatRow(
        name=name,
        value=value,
        nodes_int8=report.summary.nodes_int8,
        nodes_total=report.summary.nodes_total,
    )
