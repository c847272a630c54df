"""Calibrated ranges as rows of the report."""

from __future__ import annotations

from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.report import RangeRow


def range_rows(table: CalibrationTable, placement: Placement | None) -> tuple[RangeRow, ...]:
    """One row per activation; weights are constants, and their ranges are their own maxima."""
    weights = _weights(placement)
    return tuple(_row(entry) for entry in table.ranges if entry.axis is None and entry.tensor not in weights)


def _weights(placement: Placement | None) -> frozenset[str]:
    decisions = placement.decisions if placement else ()
    return frozenset(decision.tensor for decision in decisions if decision.kind is SlotKind.WEIGHT)


def _row(entry: TensorRange) -> RangeRow:
    return RangeRow(
        tensor=entry.tensor,
        amax=max(entry.amax),
        low=entry.low,
        high=entry.high,
        method=entry.method,
        note=entry.note,
    )
