"""One word per area of a run: precision, accuracy, data, engine, log."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from qdqtool.core.comparison import BOXES, Comparison
from qdqtool.core.dtypes import DType
from qdqtool.core.events import End
from qdqtool.core.findings import Finding, Severity
from qdqtool.core.report import Report, Summary
from qdqtool.core.wording import counted
from qdqtool.report import words

_DATA = ("DAT", "CAL")
_LOST = frozenset({"DAT107", "DAT112"})
"""What accuracy itself lost, which is no defect of the data."""
_MEANS_LITTLE = frozenset({"DAT102", "DAT104", "DAT105", "DAT106"})
"""Defects of the data that take the meaning from any figure of accuracy: "0 % -> 0 %, within noise" is not good."""
_LEVELS = {Severity.ERROR: "bad", Severity.WARNING: "doubtful", Severity.INFO: "good"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """What one area comes to.

    Attributes:
        name: of the area.
        level: "good", "doubtful", "bad", or "unknown" where nothing was recorded.
        text: the figures behind it.
        anchor: the section of the page that says more.
    """

    name: str
    level: str
    text: str
    anchor: str


def areas(report: Report) -> tuple[Area, ...]:
    """All areas, in their order; one about which nothing is recorded is unknown, never good."""
    return (_precision(report), _accuracy(report), _data(report), _engine(report), _log(report))


def _precision(report: Report) -> Area:
    summary = report.summary
    total, quantized = summary.nodes_total, summary.nodes_int8
    if not total or quantized is None:
        return _kernels(summary)
    lost = sum(entry.requested for entry in report.fallbacks)
    plain = set(summary.requested) <= {"int8", "float"}
    text = (
        f"{quantized} of {counted(total, 'node')} INT8"
        if plain
        else f"{words.formats(summary.realised)} of {counted(total, 'node')}"
    )
    text += f", {lost} requested in vain" if lost else ""
    # A build whose log or layers ask for nothing below float may have been meant so, or not.
    kept = "good" if set(summary.requested) - {"float"} else "unknown"
    return Area(name="Precision", level="doubtful" if lost else kept, text=text, anchor="nodes")


def _kernels(summary: Summary) -> Area:
    """Without the model nobody knows what was asked for: only an engine that is quantized throughout is good."""
    compute = summary.compute_kernels
    if summary.int8_kernels is None or not compute:
        return Area(name="Precision", level="unknown", text="not recorded", anchor="layers")
    low = {word: count for word, count in summary.kernel_types.items() if DType.parse(word).is_quantized}
    text = f"{words.formats(low).upper() if low else 'none'} of {counted(compute, 'kernel')}"
    if set(low) <= {DType.INT8.value}:
        text = f"{summary.int8_kernels} of {counted(compute, 'kernel')} INT8"
    level = "good" if sum(low.values()) == compute else "unknown"
    return Area(name="Precision", level=level, text=text, anchor="layers")


def _accuracy(report: Report) -> Area:
    level, text = _compared(report.comparison)
    found = [finding for finding in report.findings if finding.code in _LOST | _MEANS_LITTLE]
    doubt = _worst(found)
    level = doubt if doubt != "good" else level
    return Area(name="Accuracy", level=level, text=text, anchor="accuracy")


def _compared(comparison: Comparison | None) -> tuple[str, str]:
    """Level and words of the figures alone."""
    if comparison is None:
        return "unknown", "not compared"
    if not comparison.meaningful:
        return "unknown", "random samples: meaningless"
    if comparison.task:
        # of boxes one or another moves in every quantized detector: too many are a finding
        lost = any(
            entry.high is not None and entry.high < 0 for entry in comparison.task if entry.metric != BOXES
        )
        return "doubtful" if lost else "good", words.shift(comparison.task[0])
    text = words.headline(comparison.outputs[0]) if comparison.outputs else "no output was compared"
    # A distance between outputs has no limit of its own: what it costs, only a task metric tells.
    return "unknown", f"{text}, no labels"


def _data(report: Report) -> Area:
    found = [
        finding for finding in report.findings if finding.code.startswith(_DATA) and finding.code not in _LOST
    ]
    if not found and not report.summary.verdict:
        return Area(name="Data", level="unknown", text="not looked at", anchor="fixes")
    return Area(name="Data", level=_worst(found), text=_counted(found), anchor="fixes")


def _engine(report: Report) -> Area:
    if not report.layers:
        return Area(name="Engine", level="unknown", text="not recorded", anchor="graph")
    found = [finding for finding in report.findings if not finding.code.startswith(_DATA)]
    return Area(name="Engine", level=_worst(found), text=_counted(found), anchor="fixes")


def _log(report: Report) -> Area:
    if not report.ledger:
        return Area(name="Log", level="unknown", text="tells of no Q and DQ nodes", anchor="ledger")
    ends = Counter(row.end for row in report.ledger)
    copies, lost = ends[End.COPY], ends[End.UNKNOWN]
    text = f"{len(report.ledger)} Q and DQ nodes: {copies} run as kernels, {lost} not accounted for"
    return Area(name="Log", level="doubtful" if lost else "good", text=text, anchor="ledger")


def _worst(found: list[Finding]) -> str:
    return _LEVELS[
        max((entry.severity for entry in found), key=lambda level: level.rank, default=Severity.INFO)
    ]


def _counted(found: list[Finding]) -> str:
    if not found:
        return "no findings"
    return words.severities(Counter(entry.severity.value for entry in found))
