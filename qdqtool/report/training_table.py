"""The table FP32, PTQ, QAT on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtool.core.qat import QatResult, QatRow
from qdqtool.core.wording import counted
from qdqtool.io.escaping import printable

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN = 5


def table(result: QatResult) -> Table:
    """Return a table of FP32, PTQ and QAT by the metric, each with its interval."""
    from rich.table import Table
    from rich.text import Text

    shown = Table("model", box=None)
    for title in (f"{result.metric} {result.unit} [measured]", "95 % interval", "change", "INT8 nodes"):
        shown.add_column(Text(printable(title)), justify="right")
    for row in result.rows:
        shown.add_row(
            Text(printable(row.name)),
            _number(row.value),
            _interval(row.low, row.high),
            _change(row),
            _nodes(row),
        )
    return shown


def notes(result: QatResult) -> list[str]:
    """Return the notes for reading the table."""
    trained = f"{result.quantizers} tensors with a quantizer of {result.engine}, on {result.device}"
    best = f"epoch {result.best_epoch} of {len(result.epochs) - 1} was kept: it has the best validation score"
    return [
        f"{counted(result.samples, 'test sample')}; {best}; {trained}",
        *(f"not trained: {entry.slot}: {entry.reason}" for entry in result.untrained[:_SHOWN]),
        *([f"... and {len(result.untrained) - _SHOWN} more"] if len(result.untrained) > _SHOWN else []),
        *result.notes,
    ]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _interval(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _change(row: QatRow) -> str:
    if row.change is None:
        return ""
    interval = _interval(row.change_low, row.change_high)
    return f"{row.change:+.2f}" + (f" ({interval})" if interval else "")


def _nodes(row: QatRow) -> str:
    return "" if row.nodes_total is None else f"{row.nodes_int8} of {row.nodes_total}"
