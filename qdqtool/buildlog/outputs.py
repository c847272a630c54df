"""A parsed log as files: JSON, tables (CSV or Parquet), a timeline (Chrome trace), and a stream of events."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from pydantic import TypeAdapter

from qdqtool._version import __version__
from qdqtool.core.buildlog import BuildLog, LogRun, TacticRow
from qdqtool.core.engine import EngineTensor
from qdqtool.core.events import OptimizerEvent
from qdqtool.core.kinds import LOG
from qdqtool.core.tensors import TensorInfo
from qdqtool.io.files import replacing
from qdqtool.io.json_files import canonical, json_text
from qdqtool.io.tables import Cell, Table, write_table
from qdqtool.io.text import TextSource

# --- JSON ------------------------------------------------------------------------------------------------------------
# The JSON of a log of any size: each run is written when it ends, so only a single run is in memory.

_RUN = TypeAdapter(LogRun)


def write_json(source: TextSource, runs: Any, out: TextIO) -> int:
    """Write a log as JSON, byte by byte as `LOG.dump` writes it; return the number of runs in the log.

    Args:
        source: the log being read; its notes are complete when the runs are.
        runs: its runs, in order; may be an iterator.
        out: the stream to write the JSON to.
    """
    count = 0
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as waiting:
        for run in runs:
            waiting.write(",\n" if count else "\n")
            waiting.write(_indent_value(_RUN.dump_python(run, mode="json", by_alias=True), 3))
            count += 1
        waiting.seek(0)
        notes = json_text(source.notes)
        out.write('{\n "data": {\n  "notes": ' + notes.replace("\n", "\n  ") + ',\n  "runs": [')
        shutil.copyfileobj(waiting, out)
        out.write("\n  ]\n },\n")
    version = json.dumps(__version__)
    out.write(
        f' "kind": "{LOG.kind}",\n "provenance": {{\n  "qdqtool": {version}\n }},\n "schema": {LOG.schema}\n}}\n'
    )
    return count


def _indent_value(value: object, depth: int) -> str:
    margin = " " * depth
    return margin + json_text(value).replace("\n", f"\n{margin}")


# --- tables ----------------------------------------------------------------------------------------------------------
# A log as tables: CSV or Parquet, one file per table, one row per thing.

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


def _tuning(run: LogRun) -> Rows:
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


def _tactics(run: LogRun) -> Rows:
    for row in run.tactics:
        yield (
            row.line,
            row.layer,
            row.runner,
            row.formats,
            row.tactic,
            row.kernel,
            row.ms,
            row.workspace,
            row.verdict,
        )


def _formats(run: LogRun) -> Rows:
    """Yield each layer's fastest kernel per combination of formats.

    Each row also has the kernel's time divided by the layer's best time.
    """
    best: dict[tuple[str, str], TacticRow] = {}
    for row in run.tactics:
        key = row.layer, row.formats
        if row.ms is not None and (key not in best or row.ms < (best[key].ms or 0.0)):
            best[key] = row
    fastest: dict[str, float] = {}
    for (layer, _), row in best.items():
        fastest[layer] = min(row.ms or 0.0, fastest.get(layer, float("inf")))
    for (layer, formats), row in best.items():
        slower = (row.ms or 0.0) / fastest[layer] if fastest[layer] else None
        yield layer, formats, row.ms, slower, row.runner, row.kernel, row.tactic, row.line


def _layers(run: LogRun) -> Rows:
    for layer in run.engine_layers:
        yield (
            layer.name,
            layer.kind,
            _infos(layer.inputs),
            _infos(layer.outputs),
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
    for unread in run.unread_lines:
        yield unread.count, unread.line, unread.text


_TABLES: dict[str, tuple[tuple[str, ...], Callable[[LogRun], Rows]]] = {
    "passes": (("pass", "attempts", "effects", "first_line"), _passes),
    "events": (("line", "kind", "pass", "nodes", "into", "detail"), _events),
    "ledger": (("node", "kind", "end", "into", "clone_of", "lines"), _ledger),
    "compute": (("node", "op", "precision", "layer", "reason", "contradiction"), _compute),
    "nodes": (("line", "node", "op", "inputs", "outputs"), _nodes),
    "tactics": (
        ("line", "layer", "runner", "formats", "tactic", "kernel", "ms", "workspace", "verdict"),
        _tactics,
    ),
    "formats": (
        ("layer", "formats", "ms", "times_the_best", "runner", "kernel", "tactic", "line"),
        _formats,
    ),
    "tuning": (
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
        _tuning,
    ),
    "layers": (("layer", "kind", "inputs", "outputs", "tactic", "stream"), _layers),
    "profile": (("layer", "total_ms", "average_ms", "median_ms", "percent"), _profile),
    "phases": (("phase", "line", "seconds", "source"), _phases),
    "funnel": (("line", "stage", "layers"), _funnel),
    "unread": (("count", "line", "text"), _unread),
}
_STATEMENTS: dict[str, tuple[str, ...]] = {
    "memory": (
        *("memory-change", "memory-snapshot", "memory-peak", "memory-peak-building", "memory-runner"),
        *(
            "memory-activation-reserved",
            "memory-host",
            "memory-device",
            "memory-scratch",
            "memory-activation",
        ),
        *(
            "memory-weights",
            "memory-runner-device",
            "memory-runner-host",
            "memory-allocated",
            "memory-host-io",
        ),
        *("engine-loaded", "context-created", "workspace-set", "scratch-runner"),
    ),
    "layer_memory": ("memory-layer", "memory-layer-old"),
    "reformats": ("reformat-added",),
    "bindings": ("io-tensor", "binding-created", "binding", "output-marked", "marks-output"),
    "trace": ("trace-average", "trace-heading", "warmup", "traced"),
    "plugins": ("plugin-registered", "plugin-known", "plugin-created", "plugin-searched"),
    "libraries": (
        "library-trying",
        "library-loaded",
        "library-version",
        "tactic-source",
        "tactic-source-for",
    ),
    "constraints": (
        *("dla-refused", "dla-unsupported", "dla-invalid", "dla-subgraphs", "dla-precision", "dla-reason"),
        *(
            "dla-lacks",
            "dla-kind",
            "dla-needs",
            "dla-batch",
            "dla-no-scale",
            "dla-node",
            "dla-shuffle",
            "dla-dynamic",
        ),
        *("unobeyed", "overruled"),
    ),
    "accuracy": ("accuracy-loss", "accuracy-failed"),
    "implicit_int8": ("scale-missing", "int8-rejected", "range-set", "tensor-scale", "default-quantization"),
}
"""Tables of statements with these wordings; statements with other wordings are in the table `statements`."""
TABLES = (*_TABLES, *_STATEMENTS, "statements")


def _statement_table(runs: tuple[LogRun, ...], names: tuple[str, ...]) -> Table:
    """Return all log messages with these pattern names as a table, in the order of the log."""
    columns = dict.fromkeys(
        column
        for run in runs
        for name in names
        if name in run.statements
        for column in run.statements[name].columns[1:]
    )
    rows = []
    for run in runs:
        statements: list[tuple[Cell, ...]] = []
        for name in names:
            if name in run.statements:
                table = run.statements[name]
                for row in table.rows:
                    cells = dict(zip(table.columns[1:], row[1:], strict=True))
                    statements.append((run.number, row[0], name, *(cells.get(column) for column in columns)))
        rows += sorted(statements, key=lambda row: int(row[1] or 0))
    return Table(columns=("run", "line", "statement", *columns), rows=_one_type_each(rows))


def _one_type_each(rows: list[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """Convert table columns with both texts and numbers to texts, because a Parquet column has one type."""
    mixed = {
        at
        for at in range(len(rows[0]) if rows else 0)
        if len({isinstance(row[at], str) for row in rows if row[at] is not None}) > 1
    }
    return [
        tuple(str(cell) if at in mixed and cell is not None else cell for at, cell in enumerate(row))
        for row in rows
    ]


def _tabulate_other_statements(runs: tuple[LogRun, ...]) -> Table:
    """Return log messages that have no table of their own, one row per field."""
    placed = {name for names in _STATEMENTS.values() for name in names}
    rows: list[tuple[Cell, ...]] = [
        (run.number, row[0], name, column, None if value is None else str(value))
        for run in runs
        for name, table in run.statements.items()
        if name not in placed
        for row in table.rows
        for column, value in zip(table.columns[1:], row[1:], strict=True)
    ]
    rows.sort(key=lambda row: (int(row[0] or 0), int(row[1] or 0)))
    return Table(columns=("run", "line", "statement", "field", "value"), rows=rows)


def table_of(log: BuildLog, name: str) -> Table:
    """Return one table of a parsed log. Its first column is the number of the run."""
    if name in _STATEMENTS:
        return _statement_table(log.runs, _STATEMENTS[name])
    if name == "statements":
        return _tabulate_other_statements(log.runs)
    columns, rows = _TABLES[name]
    return Table(
        columns=("run", *columns), rows=[(run.number, *row) for run in log.runs for row in rows(run)]
    )


def write_tables(log: BuildLog, folder: Path, *, parquet: bool = False) -> tuple[Path, ...]:
    """Write every table of a parsed log that has rows as a .csv or .parquet file into a folder.

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


def _infos(tensors: Sequence[TensorInfo | EngineTensor]) -> str:
    return " | ".join(f"{tensor.name} {tensor.dtype} {_dims(tensor.shape)}" for tensor in tensors)


def _dims(shape: tuple[int | str, ...] | None) -> str:
    return "x".join(map(str, shape)) if shape is not None else "?"


# --- timeline --------------------------------------------------------------------------------------------------------
# The build's timeline as a Chrome trace, for Perfetto (ui.perfetto.dev) or chrome://tracing.
#
# A log has time stamps of one second, and durations. Phases between stamps are drawn at their times. For the tuning of
# layers, only durations are known: layers are drawn one after the other from the start of tuning, and their category
# says so.

_PHASES, _TUNING = 1, 2


def trace_of(log: BuildLog) -> str:
    """Return a parsed log as a Chrome trace: one process per run, with phases and tuned layers."""
    events: list[dict[str, Any]] = []
    for run in log.runs:
        events += [
            _name(run.number, None, f"run {run.number} ({run.front_end})"),
            _name(run.number, _PHASES, "phases"),
            _name(run.number, _TUNING, "autotuning by layer"),
        ]
        events += _phase_slices(run)
        events += _tuning_slices(run)
    return canonical({"traceEvents": events, "displayTimeUnit": "ms"})


def _phase_slices(run: LogRun) -> list[dict[str, Any]]:
    measured = [phase for phase in run.phases if not phase.stated]
    category = "time stamps"
    if not measured:
        measured, category = list(run.phases), "durations as the log states them, in order"
    slices = []
    at = 0.0
    for phase in measured:
        slices.append(
            _slice(run.number, _PHASES, phase.name, (at, phase.seconds), {"line": phase.line}, category)
        )
        at += phase.seconds
    return slices


def _tuning_slices(run: LogRun) -> list[dict[str, Any]]:
    at = 0.0
    for phase in (phase for phase in run.phases if not phase.stated):
        if phase.name == "autotuning":
            break
        at += phase.seconds
    slices = []
    for row in sorted(run.tuning.layers, key=lambda row: row.line):
        if row.seconds is None:
            continue
        details = {
            "line": row.line,
            "candidates": row.candidates,
            "fastest_ms": row.fastest_ms,
            "runner": row.runner,
            "chosen": row.chosen,
        }
        slices.append(
            _slice(
                run.number,
                _TUNING,
                row.layer,
                (at, row.seconds),
                details,
                "durations as the log states them, in order",
            )
        )
        at += row.seconds
    return slices


def _slice(
    process: int, thread: int, name: str, when: tuple[float, float], details: dict[str, Any], category: str
) -> dict[str, Any]:
    begin, seconds = when
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": process,
        "tid": thread,
        "ts": round(begin * 1e6),
        "dur": round(seconds * 1e6),
        "args": details,
    }


def _name(process: int, thread: int | None, name: str) -> dict[str, Any]:
    if thread is None:
        return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
    return {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


# --- events ----------------------------------------------------------------------------------------------------------
# Optimizer events as JSON lines, one event per line, for tools that read streams of data.

_EVENT = TypeAdapter(OptimizerEvent)


def write_events(log: BuildLog, path: Path) -> None:
    """Write all events of all runs of `log` to `path`, or leave `path` unchanged if this fails. The number `run` counts from 1."""
    with replacing(path) as draft, draft.open("w", encoding="utf-8", newline="\n") as stream:
        for run in log.runs:
            for event in run.events:
                line = {"run": run.number, **_EVENT.dump_python(event, mode="json")}
                stream.write(json_text(line, indent=None) + "\n")
