"""Comparison of two logs of one model: fusions, precision, time, and the first decision that differs."""

from __future__ import annotations

from collections import Counter

from qdqtool.core.buildlog import LogRun, Times
from qdqtool.core.difference import LogDiff, NodeChange, PassChange, TimeChange
from qdqtool.core.events import EventKind, OptimizerEvent

_EFFECTS = frozenset(
    {
        EventKind.FUSED,
        EventKind.QUANTIZED,
        EventKind.SWAPPED,
        EventKind.DUPLICATE,
        EventKind.RETYPED,
        EventKind.MERGED,
        EventKind.CONCAT,
        EventKind.COPIED,
        EventKind.SLICE,
    }
)
_Key = tuple[EventKind, str, tuple[str, ...], str]


def compare(first: LogRun, second: LogRun) -> LogDiff:
    """Compare two builds of one model by their logs."""
    ours, theirs = _decisions(first), _decisions(second)
    return LogDiff(
        versions=(_version(first), _version(second)),
        layers=(_layers(first), _layers(second)),
        passes=_passes(first, second),
        only_first=_missing(ours, theirs),
        only_second=_missing(theirs, ours),
        parting=_parting(ours, theirs),
        precisions=_changes(
            {node.node: node.precision for node in first.compute},
            {node.node: node.precision for node in second.compute},
        ),
        ledger=_changes(
            {row.node: row.end.value for row in first.ledger},
            {row.node: row.end.value for row in second.ledger},
        ),
        times=_times(first, second),
    )


def _decisions(run: LogRun) -> list[OptimizerEvent]:
    return [event for event in run.events if event.kind in _EFFECTS]


def _key(event: OptimizerEvent) -> _Key:
    return event.kind, event.pass_name, event.nodes, event.into


def _missing(here: list[OptimizerEvent], there: list[OptimizerEvent]) -> tuple[OptimizerEvent, ...]:
    """Return the builder decisions that occur more often in the log `here` than in `there`, in order."""
    left = Counter(_key(event) for event in there)
    missing = []
    for event in here:
        key = _key(event)
        if left[key] > 0:
            left[key] -= 1
        else:
            missing.append(event)
    return tuple(missing)


def _parting(
    ours: list[OptimizerEvent], theirs: list[OptimizerEvent]
) -> tuple[OptimizerEvent | None, OptimizerEvent | None] | None:
    for at in range(max(len(ours), len(theirs))):
        mine = ours[at] if at < len(ours) else None
        their = theirs[at] if at < len(theirs) else None
        if mine is None or their is None or _key(mine) != _key(their):
            return mine, their
    return None


def _passes(first: LogRun, second: LogRun) -> tuple[PassChange, ...]:
    names = dict.fromkeys((*first.passes, *second.passes))
    counts = [
        PassChange(
            name=name,
            first=first.passes[name].effects if name in first.passes else 0,
            second=second.passes[name].effects if name in second.passes else 0,
        )
        for name in names
    ]
    return tuple(count for count in counts if count.first != count.second)


def _changes(first: dict[str, str], second: dict[str, str]) -> tuple[NodeChange, ...]:
    return tuple(
        NodeChange(node=node, first=first.get(node, ""), second=second.get(node, ""))
        for node in dict.fromkeys((*first, *second))
        if first.get(node) != second.get(node)
    )


def _times(first: LogRun, second: LogRun) -> tuple[TimeChange, ...]:
    ours, theirs = _collect_times(first), _collect_times(second)
    pairs = [
        TimeChange(what=phase, first=ours.get(phase), second=theirs.get(phase))
        for phase in dict.fromkeys((*ours, *theirs))
    ]
    changed = [pair for pair in pairs if pair.first != pair.second]
    changed.sort(
        key=lambda pair: (not pair.what.startswith("run: "), -abs((pair.second or 0) - (pair.first or 0)))
    )
    return tuple(changed)


def _collect_times(run: LogRun) -> dict[str, float]:
    """Return all times in a run's log, by name with unit."""
    times: dict[str, float] = {}
    if run.performance is not None:
        if run.performance.throughput_qps is not None:
            times["run: throughput (qps)"] = run.performance.throughput_qps
        for name, metric in run.performance.metrics.items():
            middle = _middle(metric)
            if middle is not None:
                times[f"run: {name} (ms)"] = middle
    for phase in run.phases:
        if phase.stated:
            times[f"build: {phase.name} (s)"] = times.get(f"build: {phase.name} (s)", 0.0) + phase.seconds
    for row in run.profile:
        times[f"layer: {row.layer} (ms)"] = times.get(f"layer: {row.layer} (ms)", 0.0) + row.average_ms
    return times


def _middle(metric: Times) -> float | None:
    return metric.median if metric.median is not None else metric.mean


def _layers(run: LogRun) -> int | None:
    return run.funnel[-1].layers if run.funnel else None


def _version(run: LogRun) -> str:
    return ".".join(map(str, run.version)) if run.version else "?"
