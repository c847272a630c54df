"""A log as tables: CSV or Parquet, one file per table, one row per thing."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from qdqtool.core.buildlog import BuildLog, LogRun
from qdqtool.core.engine import EngineTensor
from qdqtool.core.tensors import TensorInfo
from qdqtool.errors import MissingPackage
from qdqtool.io.files import replacing, write_text

Cell = str | int | float | None
Rows = Iterator[tuple[Cell, ...]]


def _passes(run: LogRun) -> Rows:
    for name, count in run.passes.items():
        yield name, count.attempts, count.effects, count.first_line


def _events(run: LogRun) -> Rows:
    for event in run.events:
        yield event.line, event.kind.value, event.pass_name, " | ".join(event.nodes), event.into, event.detail


def _ledger(run: LogRun) -> Rows:
    for row in run.ledger:
        yield row.node, row.kind, row.end.value, row.into, row.clone_of, " ".join(map(str, row.lines))


def _compute(run: LogRun) -> Rows:
    for node in run.compute:
        yield node.node, node.op, node.precision, node.layer, node.reason, node.contradiction


def _nodes(run: LogRun) -> Rows:
    for node in run.network.nodes:
        yield node.line, node.name, node.op, _infos(node.inputs), _infos(node.outputs)


def _tactics(run: LogRun) -> Rows:
    for row in run.tuning.layers:
        yield (
            row.layer,
            row.formats,
            row.candidates,
            row.seconds,
            row.fastest_ms,
            row.fastest,
            row.runner,
            row.chosen,
            row.chosen_ms,
            row.line,
        )
    for op in run.tuning.myelin:
        yield (
            op.op,
            1,
            op.candidates,
            None,
            op.fastest_ms,
            op.fastest,
            "Myelin",
            op.selected,
            op.selected_ms,
            op.line,
        )


def _layers(run: LogRun) -> Rows:
    for layer in run.engine_layers:
        yield (
            layer.name,
            layer.kind,
            _borders(layer.inputs),
            _borders(layer.outputs),
            layer.tactic,
            layer.stream,
        )


def _profile(run: LogRun) -> Rows:
    for row in run.profile:
        yield row.layer, row.total_ms, row.average_ms, row.median_ms, row.percent


def _phases(run: LogRun) -> Rows:
    for phase in run.phases:
        yield phase.name, phase.line, phase.seconds, "stated" if phase.stated else "time stamps"


def _funnel(run: LogRun) -> Rows:
    for step in run.funnel:
        yield step.line, step.stage, step.layers


def _unread(run: LogRun) -> Rows:
    for one in run.unread_lines:
        yield one.count, one.line, one.text


_TABLES: dict[str, tuple[tuple[str, ...], Callable[[LogRun], Rows]]] = {
    "passes": (("pass", "attempts", "effects", "first_line"), _passes),
    "events": (("line", "kind", "pass", "nodes", "into", "detail"), _events),
    "ledger": (("node", "kind", "end", "into", "clone_of", "lines"), _ledger),
    "compute": (("node", "op", "precision", "layer", "reason", "contradiction"), _compute),
    "nodes": (("line", "node", "op", "inputs", "outputs"), _nodes),
    "tactics": (
        (
            "layer",
            "formats",
            "candidates",
            "seconds",
            "fastest_ms",
            "fastest",
            "runner",
            "chosen",
            "chosen_ms",
            "line",
        ),
        _tactics,
    ),
    "layers": (("layer", "kind", "inputs", "outputs", "tactic", "stream"), _layers),
    "profile": (("layer", "total_ms", "average_ms", "median_ms", "percent"), _profile),
    "phases": (("phase", "line", "seconds", "source"), _phases),
    "funnel": (("line", "stage", "layers"), _funnel),
    "unread": (("count", "line", "text"), _unread),
}
TABLES = tuple(_TABLES)


def rows_of(log: BuildLog, table: str) -> tuple[tuple[str, ...], list[tuple[Cell, ...]]]:
    """Columns and rows of a table; the first column is the number of the run."""
    columns, rows = _TABLES[table]
    return ("run", *columns), [(run.number, *row) for run in log.runs for row in rows(run)]


def csv_of(log: BuildLog, table: str) -> str:
    """A table as CSV with a header line."""
    columns, rows = rows_of(log, table)
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(cell) for cell in row] for row in rows)
    return stream.getvalue()


def write_tables(log: BuildLog, folder: Path, *, parquet: bool = False) -> tuple[Path, ...]:
    """Write every table that has rows as `<table>.csv`, or `<table>.parquet`, into a folder.

    Raises:
        MissingPackage: Parquet is wanted and pyarrow is not installed.
        InputFileError: the folder cannot be written.
    """
    written = []
    for table in TABLES:
        columns, rows = rows_of(log, table)
        if not rows:
            continue
        path = folder / f"{table}.{'parquet' if parquet else 'csv'}"
        if parquet:
            _write_parquet(path, columns, rows)
        else:
            write_text(path, csv_of(log, table))
        written.append(path)
    return tuple(written)


def _write_parquet(path: Path, columns: tuple[str, ...], rows: list[tuple[Cell, ...]]) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackage(
            "Parquet files need pyarrow", fix="pip install 'qdqtool[parquet]', or write CSV", where=str(path)
        ) from error
    data: dict[str, list[Any]] = {name: [row[at] for row in rows] for at, name in enumerate(columns)}
    with replacing(path) as draft:
        parquet.write_table(pa.table(data), draft)


def _plain(cell: Cell) -> str:
    """A cell of a CSV file: control characters as escapes, so that a row stays one line of plain text."""
    if cell is None:
        return ""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(cell))


def _infos(tensors: tuple[TensorInfo, ...]) -> str:
    return " | ".join(f"{tensor.name} {tensor.dtype} {_dims(tensor.shape)}" for tensor in tensors)


def _borders(tensors: tuple[EngineTensor, ...]) -> str:
    return " | ".join(f"{tensor.name} {tensor.dtype} {_dims(tensor.shape)}" for tensor in tensors)


def _dims(shape: tuple[int | str, ...] | None) -> str:
    return "x".join(map(str, shape)) if shape is not None else "?"
