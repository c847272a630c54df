"""Rows of the report as plain values: findings by check, engine layers, calibrated ranges, results of a build log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import fsum
from typing import Any, TypeVar

from calibrators.histogram import Histogram, coarsen
from qdqtool.core.buildlog import LogRun
from qdqtool.core.calibration import CALIBRATORS, CalibrationTable, TensorRange
from qdqtool.core.engine import Certainty, Engine, EngineLayer, EngineTensor, Role
from qdqtool.core.explore import EngineView, LayerView
from qdqtool.core.findings import Evidence, Finding, Severity
from qdqtool.core.grids import grid_for
from qdqtool.core.journal import HEAD, Journal
from qdqtool.core.placement import Placement, SlotKind
from qdqtool.core.report import LayerRow, RangeRow, Report, TensorRow, Threshold
from qdqtool.core.tensors import DType, QuantFormat
from qdqtool.engine.costs import at_optimum
from qdqtool.trt.histories import histories

T = TypeVar("T")

# --- groups ----------------------------------------------------------------------------------------------------------
# Findings grouped by check, with their total cost.


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingGroup:
    """All findings of one check, with their total cost.

    Attributes:
        code: the check's code.
        name: its name in words.
        severity: the worst of its findings.
        hazard: effect of the findings.
        findings: in the order of their layers.
        bytes: activation bytes that all findings together affect, as far as known; 0 if unknown.
        ms: measured milliseconds of the layers they are about; 0 if none were timed.
    """

    code: str
    name: str
    severity: Severity
    hazard: str
    findings: tuple[Finding, ...]
    bytes: int
    ms: float


def groups(report: Report) -> tuple[FindingGroup, ...]:
    """Group findings by check: the most severe first, then the most expensive; in a check, in launch order."""
    order = {
        name: place for place, layer in reversed(list(enumerate(report.layers))) for name in _names(layer)
    }
    times = {layer.name: layer.ms or 0.0 for layer in report.layers}
    by_check: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for entry in sorted(report.findings, key=lambda entry: order.get(entry.subject, len(order))):
        by_check[entry.code, entry.check].append(entry)
    grouped = [_group(code, check, entries, times) for (code, check), entries in by_check.items()]
    return tuple(
        sorted(grouped, key=lambda group: (-group.severity.rank, -group.ms, -group.bytes, group.code))
    )


def _names(layer: LayerRow) -> tuple[str, ...]:
    return (layer.name, *layer.onnx_nodes)


def _group(code: str, check: str, entries: list[Finding], times: dict[str, float]) -> FindingGroup:
    return FindingGroup(
        code=code,
        name=check.replace("_", " "),
        severity=max((entry.severity for entry in entries), key=lambda severity: severity.rank),
        hazard=next((entry.hazard for entry in entries if entry.hazard), ""),
        findings=tuple(entries),
        bytes=sum(entry.bytes or 0 for entry in entries),
        ms=fsum(times.get(name, 0.0) for name in {entry.subject for entry in entries}),
    )


def alike(entries: Iterable[T], *fields: str) -> list[list[T]]:
    """Group entries whose attributes `fields` are equal, so that the report prints each reason once."""
    shared: dict[tuple[object, ...], list[T]] = defaultdict(list)
    for entry in entries:
        shared[tuple(getattr(entry, field) for field in fields)].append(entry)
    return list(shared.values())


def places(evidence: tuple[Evidence, ...]) -> list[tuple[str, str]]:
    """Group the evidence of a finding by file."""
    by_file: dict[str, list[str]] = defaultdict(list)
    for entry in evidence:
        by_file[entry.file].append(entry.place)
    return [(file, ", ".join(dict.fromkeys(names))) for file, names in by_file.items()]


# --- engine layers ---------------------------------------------------------------------------------------------------
# Engine layers as rows of the report.


def layer_rows(
    engine: Engine, view: EngineView | None = None, log: LogRun | None = None
) -> tuple[LayerRow, ...]:
    """Return all layers in launch order. `view` adds their costs, `log` adds the history of each layer.

    `view` must be of the same engine.
    """
    sized = at_optimum(engine)
    rows = tuple(
        replace(_row(layer), bytes=_bytes((*tuned.inputs, *tuned.outputs)))
        for layer, tuned in zip(engine.layers, sized.layers, strict=True)
    )
    if view is not None:
        rows = tuple(map(_add_cost, rows, view.layers))
    if log is None:
        return rows
    stories = histories(engine, log).layers
    return tuple(replace(row, history=history) for row, history in zip(rows, stories, strict=True))


def model_rows(report: Report) -> tuple[LayerRow, ...]:
    """Return the nodes of the Q/DQ model as layers; () if the run has no such model.

    A node has the precision that the engine computes it in; if none is known, that of its first input.
    """
    verdicts = {verdict.node: verdict for verdict in report.verdicts}
    rows = []
    for node in report.sections.get("model") or ():
        inputs, constants, outputs = (
            tuple(_model_tensor(*entry) for entry in node[key]) for key in ("inputs", "constants", "outputs")
        )
        verdict = verdicts.get(node["name"])
        rows.append(
            LayerRow(
                name=node["name"],
                kind=node["op"],
                tactic="",
                onnx_nodes=(node["name"],),
                inputs=inputs,
                constants=constants,
                outputs=outputs,
                role=Role.OTHER if verdict is None else Role.COMPUTE,
                precision=verdict.precision
                if verdict
                else next((each.dtype for each in inputs), DType.UNKNOWN),
                certainty=Certainty.STATED,
                bytes=None,
            )
        )
    return tuple(rows)


def _model_tensor(name: str, shape: list[int] | None, dtype: str, scale: str) -> TensorRow:
    return TensorRow(
        name=name, shape=None if shape is None else tuple(shape), dtype=DType(dtype), format=scale, bytes=None
    )


def add_times(report: Report, view: EngineView) -> Report:
    """Return the report with costs and times of its layers. `view` has the layers of the same engine."""
    return replace(
        report, layers=tuple(map(_add_cost, report.layers, view.layers)), notes=(*report.notes, *view.notes)
    )


def _row(layer: EngineLayer) -> LayerRow:
    return LayerRow(
        name=layer.name,
        kind=layer.kind,
        tactic=layer.tactic,
        onnx_nodes=layer.onnx_nodes,
        inputs=tuple(_tensor(tensor) for tensor in layer.inputs),
        constants=tuple(_tensor(tensor) for tensor in layer.constants),
        outputs=tuple(_tensor(tensor) for tensor in layer.outputs),
        role=layer.role,
        precision=layer.precision,
        certainty=layer.precision_certainty,
        bytes=None,
        weight_bytes=_bytes(layer.constants),
    )


def _add_cost(row: LayerRow, view: LayerView) -> LayerRow:
    return replace(
        row,
        ms=view.ms,
        weight_bytes=row.weight_bytes if view.weight_bytes is None else view.weight_bytes,
        macs=view.macs,
        gemm=view.gemm,
        intensity=view.intensity,
        tflops=view.tflops,
        gbs=view.gbs,
        bound=view.bound or "",
    )


def _tensor(tensor: EngineTensor) -> TensorRow:
    return TensorRow(
        name=tensor.name, shape=tensor.shape, dtype=tensor.dtype, format=tensor.format, bytes=tensor.bytes
    )


def _bytes(tensors: Iterable[EngineTensor]) -> int | None:
    """Return the total bytes of the tensors; None if there are no tensors or one size is unknown."""
    sizes = [tensor.bytes for tensor in tensors]
    known_sizes = [size for size in sizes if size is not None]
    return sum(known_sizes) if known_sizes and len(known_sizes) == len(sizes) else None


# --- ranges ----------------------------------------------------------------------------------------------------------
# Calibrated ranges as rows of the report.

# Number of bars in a small chart; the table next to it has the figures.
_BINS = 64


def range_rows(
    table: CalibrationTable, placement: Placement | None, histograms: Mapping[str, Histogram]
) -> tuple[RangeRow, ...]:
    """Return one row per activation. Weights are omitted: they are constants, and their ranges are their maxima."""
    weights = _weights(placement)
    return tuple(
        _range_row(entry, histograms.get(entry.tensor))
        for entry in table.ranges
        if entry.axis is None and entry.tensor not in weights
    )


def _weights(placement: Placement | None) -> frozenset[str]:
    decisions = placement.decisions if placement else ()
    return frozenset(decision.tensor for decision in decisions if decision.kind is SlotKind.WEIGHT)


def _range_row(entry: TensorRange, histogram: Histogram | None) -> RangeRow:
    counted = histogram if histogram is not None and histogram.has_bins else None
    counts, width = coarsen(counted, _BINS) if counted is not None else ((), 0.0)
    return RangeRow(
        tensor=entry.tensor,
        amax=max(entry.symmetric.amax),
        low=entry.low,
        high=entry.high,
        method=entry.method,
        note=entry.note,
        counts=tuple(int(count) for count in counts),
        width=width,
        thresholds=_thresholds(counted, entry.format) if counted is not None else (),
    )


def _thresholds(histogram: Histogram, format_: QuantFormat) -> tuple[Threshold, ...]:
    """Return the range that each shipped calibrator chooses for a histogram.

    Calibrators that delegate to another count once.

    Third-party calibrators are not run for a report, because a slow or broken one would stop it. Their choice in this
    run is the range itself.
    """
    grid = grid_for(format_)
    ranges = (CALIBRATORS.load(name)(histogram, grid) for name in CALIBRATORS.shipped())
    by_method = {entry.method: entry.amax for entry in ranges}
    return tuple(Threshold(method=method, amax=amax) for method, amax in sorted(by_method.items()))


# --- journals --------------------------------------------------------------------------------------------------------
# The candidates of searches as plain JSON values.


def journal_rows(journals: Iterable[Journal | None]) -> dict[str, Any] | None:
    """Return `head` (column titles) and `searches` (text rows and gains); None if no search has candidates.

    A gain is (what, outcome, gain, low, high) in the unit of the search.
    """
    searches = [
        {
            "search": journal.search,
            "objective": journal.objective,
            "unit": journal.unit,
            "rows": [list(row) for row in journal.rows],
            "gains": [
                [trial.what, trial.outcome.value, trial.gain, trial.low, trial.high]
                for trial in journal.trials
                if trial.gain is not None
            ],
        }
        for journal in journals
        if journal is not None and journal.trials
    ]
    return {"head": [name.capitalize() for name in HEAD], "searches": searches} if searches else None


# --- build log -------------------------------------------------------------------------------------------------------
# The facts of a build log on a page: how often each pass ran and had an effect, and the evidence for the precision of
# each node.

Rows = dict[str, list[list[Any]]]


def log_rows(run: LogRun) -> Rows:
    """Return the results of a build log as plain JSON values.

    They are `passes` (name, attempts, effects, line) and `nodes` (node, op, precision, why, lines).
    """
    passes = sorted(run.passes.items(), key=lambda item: item[1].first_line)
    return {
        "passes": [[name, count.attempts, count.effects, count.first_line] for name, count in passes],
        "nodes": [
            [node.node, node.op, node.precision, node.contradiction or node.reason, list(node.lines)]
            for node in run.compute
        ],
    }
