"""The build's timeline as a Chrome trace, for Perfetto (ui.perfetto.dev) or chrome://tracing.

A log tells time by stamps of one second and by durations it states. Phases between stamps are drawn where they were;
tuning of layers, of which only durations are stated, is drawn one after the other from where tuning begins, and says so
in its category.
"""

from __future__ import annotations

from typing import Any

from qdqtool.core.buildlog import BuildLog, LogRun
from qdqtool.io.json_files import canonical

_PHASES, _TUNING = 1, 2


def trace_of(log: BuildLog) -> str:
    """The trace as JSON text: one process per run, phases above, tuned layers below; times in microseconds."""
    events: list[dict[str, Any]] = []
    for run in log.runs:
        events += [
            _name(run.number, None, f"run {run.number} ({run.front_end})"),
            _name(run.number, _PHASES, "phases"),
            _name(run.number, _TUNING, "autotuning by layer"),
        ]
        events += _phases(run)
        events += _tuning(run)
    return canonical({"traceEvents": events, "displayTimeUnit": "ms"})


def _phases(run: LogRun) -> list[dict[str, Any]]:
    measured = [phase for phase in run.phases if not phase.stated]
    category = "time stamps"
    if not measured:
        measured, category = list(run.phases), "stated durations, in order"
    slices = []
    at = 0.0
    for phase in measured:
        slices.append(
            _slice(run.number, _PHASES, phase.name, (at, phase.seconds), {"line": phase.line}, category)
        )
        at += phase.seconds
    return slices


def _tuning(run: LogRun) -> list[dict[str, Any]]:
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
            _slice(run.number, _TUNING, row.layer, (at, row.seconds), details, "stated durations, in order")
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
