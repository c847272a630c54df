"""Calibrated ranges as rows of the report."""

from __future__ import annotations

from collections.abc import Mapping

from calibrators.histogram import Histogram, coarsened
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.report import RangeRow

_BINS = 64


def range_rows(
    table: CalibrationTable, placement: Placement | None, histograms: Mapping[str, Histogram]
) -> tuple[RangeRow, ...]:
    """One row per activation; weights are constants, and their ranges are their own maxima."""
    weights = _weights(placement)
    return tuple(
        _row(entry, histograms.get(entry.tensor))
        for entry in table.ranges
        if entry.axis is None and entry.tensor not in weights
    )


def _weights(placement: Placement | None) -> frozenset[str]:
    decisions = placement.decisions if placement else ()
    return frozenset(decision.tensor for decision in decisions if decision.kind is SlotKind.WEIGHT)


def _row(entry: TensorRange, histogram: Histogram | None) -> RangeRow:
    counts, width = coarsened(histogram, _BINS) if histogram is not None else ((), 0.0)
    return RangeRow(
        tensor=entry.tensor,
        amax=max(entry.amax),
        low=entry.low,
        high=entry.high,
        method=entry.method,
        note=entry.note,
        counts=tuple(int(count) for count in counts),
        width=width,
    )
