"""A log as tables: CSV or Parquet, one file per table, one row per thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from qdqtool.core.buildlog import BuildLog, LogRun
from qdqtool.core.engine import EngineTensor
from qdqtool.core.tensors import TensorInfo
from qdqtool.io.tables import Cell, Table, write_table

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


def table_of(log: BuildLog, name: str) -> Table:
    """One table; its first column is the number of the run."""
    columns, rows = _TABLES[name]
    return Table(
        columns=("run", *columns), rows=[(run.number, *row) for run in log.runs for row in rows(run)]
    )


def write_tables(log: BuildLog, folder: Path, *, parquet: bool = False) -> tuple[Path, ...]:
    """Write every table that has rows as `<table>.csv`, or `<table>.parquet`, into a folder.

    Raises:
        MissingPackage: Parquet is asked for and pyarrow is not installed.
        InputFileError: the folder cannot be written.
    """
    written = []
    for name in TABLES:
        table = table_of(log, name)
        if table.rows:
            path = folder / f"{name}.{'parquet' if parquet else 'csv'}"
            write_table(path, table)
            written.append(path)
    return tuple(written)


def _infos(tensors: tuple[TensorInfo, ...]) -> str:
    return " | ".join(f"{tensor.name} {tensor.dtype} {_dims(tensor.shape)}" for tensor in tensors)


def _borders(tensors: tuple[EngineTensor, ...]) -> str:
    return " | ".join(f"{tensor.name} {tensor.dtype} {_dims(tensor.shape)}" for tensor in tensors)


def _dims(shape: tuple[int | str, ...] | None) -> str:
    return "x".join(map(str, shape)) if shape is not None else "?"
