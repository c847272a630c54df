"""Calibrated ranges as rows of the report."""

from __future__ import annotations

from collections.abc import Mapping

from calibrators import NOT_PLUGINS
from calibrators.histogram import Histogram, coarsened
from qdqtool.core.calibration import CalibrationTable, TensorRange
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.report import RangeRow, Threshold
from qdqtool.plugins import Registry

_BINS = 64
_CALIBRATORS = Registry(package="calibrators", besides=NOT_PLUGINS)


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
        thresholds=_thresholds(counted) if counted is not None else (),
    )


def _thresholds(histogram: Histogram) -> tuple[Threshold, ...]:
    """What every calibrator of the shelf makes of the histogram; those that hand over to another one count once."""
    found = (_CALIBRATORS.load(name)(histogram) for name in _CALIBRATORS.names())
    by_method = {entry.method: entry.amax for entry in found}
    return tuple(Threshold(method=method, amax=amax) for method, amax in sorted(by_method.items()))
