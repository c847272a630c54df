"""Charts of results for `plot`."""

from __future__ import annotations

from typing import Any

from qdqtool.core.comparison import Comparison
from qdqtool.core.report import Report
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.core.showing import draw_with
from qdqtool.core.sweep import Sweep


def _charts_of(result: Any) -> dict[str, Any]:
    """Return the charts of a result by their names; {} if it has none."""
    from qdqtool.report import figures, sweeps
    from qdqtool.report.assemble import report_of
    from qdqtool.report.svg import Picture

    if isinstance(result, Sweep):
        return {"sweep": Picture(sweeps.chart(result))}
    if isinstance(result, (Comparison, Sensitivity)):
        result = report_of(result)
    if not isinstance(result, Report):
        return {}
    return {name: Picture(drawing) for name, drawing in figures.charts(result).items()}


draw_with(_charts_of)
