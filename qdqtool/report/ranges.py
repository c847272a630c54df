"""Calibrated ranges as rows of the report."""

from __future__ import annotations

from collections.abc import Mapping

from calibrators.histogram import Histogram, coarsened
from qdqtool.core.calibration import CALIBRATORS, CalibrationTable, TensorRange
from qdqtool.core.grids import grid_for
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.quant_format import QuantFormat
from qdqtool.core.report import RangeRow, Threshold

# Bars of a small picture; the table beside it has the figures.
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
    counted = histogram if histogram is not None and histogram.has_bins else None
    counts, width = coarsened(counted, _BINS) if counted is not None else ((), 0.0)
    return RangeRow(
        tensor=entry.tensor,
        amax=max(entry.amax),
        low=entry.low,
        high=entry.high,
        method=entry.method,
        note=entry.note,
        counts=tuple(int(count) for count in counts),
        width=width,
        thresholds=_thresholds(counted, entry.format) if counted is not None else (),
    )


def _thresholds(histogram: Histogram, format_: QuantFormat) -> tuple[Threshold, ...]:
    """What the shipped calibrators make of the histogram; those that hand over to another one count once.

    Calibrators of other distributions are not run for a report: one that is slow or broken would take it down, and
    what they chose in this run is the range itself.
    """
    grid = grid_for(format_)
    found = (CALIBRATORS.load(name)(histogram, grid) for name in CALIBRATORS.shipped())
    by_method = {entry.method: entry.amax for entry in found}
    return tuple(Threshold(method=method, amax=amax) for method, amax in sorted(by_method.items()))
