"""Two runs side by side: figures, nodes with different precision, layers with different cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from qdqtool.core.comparison import Comparison
from qdqtool.core.engine import Role
from qdqtool.core.findings import NodeVerdict
from qdqtool.core.report import LayerRow, RangeRow, Report, Summary
from qdqtool.core.tensors import FORMATS
from qdqtool.core.wording import count_noun, metric
from qdqtool.report import words
from qdqtool.report.drawing import main_node
from qdqtool.report.rows import groups
from qdqtool.trt.names import stem


@dataclass(frozen=True, kw_only=True, slots=True)
class FigurePair:
    """One figure of both runs as text; if it is a number, also the difference."""

    name: str
    first: str
    second: str
    change: str


@dataclass(frozen=True, kw_only=True, slots=True)
class KindPair:
    """Findings of one kind: their number in each run, and the subjects that only one run has."""

    code: str
    name: str
    first: int
    second: int
    gone: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePair:
    """A compute node with two different verdicts; "absent" if a run does not have the node."""

    node: str
    op: str
    first: str
    second: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CostPair:
    """Costs of an ONNX node in both runs: kernels, bytes and milliseconds of the layers that count for this node."""

    node: str
    first_kernels: int
    second_kernels: int
    first_bytes: int | None
    second_bytes: int | None
    first_ms: float | None
    second_ms: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """All differences between two runs, for a report of both.

    Attributes:
        settings: values that the runs did not share: model, recipe, samples; `change` is always "".
        cause: conclusion from the settings about the cause of all other differences, one sentence.
        figures: accuracy, SQNR, kernels, bytes, times.
        ranges: tensors whose range or zero point differs, these first, then the largest ratio; `change` is the ratio.
    """

    settings: tuple[FigurePair, ...]
    cause: str
    figures: tuple[FigurePair, ...]
    ranges: tuple[FigurePair, ...]
    findings: tuple[KindPair, ...]
    nodes: tuple[NodePair, ...]
    costs: tuple[CostPair, ...]


def compare_sides(first: Report, second: Report) -> Sides:
    """Compare two runs. Runs of one model are aligned by the names of ONNX nodes."""
    settings = _settings(first, second)
    return Sides(
        settings=settings,
        cause=_cause(first, second, settings),
        figures=_figures(first, second),
        ranges=_ranges(first.ranges, second.ranges),
        findings=_kinds(first, second),
        nodes=_nodes(first.verdicts, second.verdicts),
        costs=_costs(first, second),
    )


def _settings(first: Report, second: Report) -> tuple[FigurePair, ...]:
    left, right = (report.sections.get("settings", {}) for report in (first, second))
    left, right = {"model": first.summary.model, **left}, {"model": second.summary.model, **right}
    if not (
        set(left) - {"model"} and set(right) - {"model"}
    ):  # one side has no recipe, so nothing is known about it
        left, right = {"model": left["model"]}, {"model": right["model"]}
    return tuple(
        FigurePair(
            name=key, first=left.get(key, words.UNKNOWN), second=right.get(key, words.UNKNOWN), change=""
        )
        for key in dict.fromkeys((*left, *right))
        if left.get(key) != right.get(key)
    )


def _cause(first: Report, second: Report, settings: tuple[FigurePair, ...]) -> str:
    if not (first.sections.get("settings") and second.sections.get("settings")):
        return "The settings are unknown, because one of the run folders has no recipe.yaml."
    effective = [row.name for row in settings if row.name != "name"]
    if not effective:
        return "No setting differs: the differences below come from another builder, device or version."
    if len(effective) == 1:
        return f"Only {effective[0]} differs: this setting causes all differences below."
    return (
        f"{count_noun(len(effective), 'setting')} differ, so no single one is the cause of what differs below: "
        "to find the cause, run again with one of them changed."
    )


def _ranges(first: tuple[RangeRow, ...], second: tuple[RangeRow, ...]) -> tuple[FigurePair, ...]:
    left = {row.tensor: row for row in first if row.amax > 0}
    pairs = [(left[row.tensor], row) for row in second if row.amax > 0 and row.tensor in left]
    ratios = [(b.amax / a.amax, a, b) for a, b in pairs]
    ordered = sorted(
        ratios, key=lambda entry: (entry[1].note == entry[2].note, -abs(math.log(entry[0])), entry[1].tensor)
    )
    return tuple(
        FigurePair(
            name=a.tensor, first=_range(a), second=_range(b), change="" if is_equal else f"x {ratio:.3g}"
        )
        for ratio, a, b in ordered
        if not (is_equal := math.isclose(ratio, 1.0, rel_tol=0.005)) or a.note != b.note
    )


def _range(row: RangeRow) -> str:
    return f"{words.number(row.amax)} ({', '.join(filter(None, (row.method, row.note)))})"


def _count_quantized(summary: Summary) -> int | None:
    """Count the compute nodes that run in a low-bit format, or whose kernel dequantizes the weights."""
    if summary.nodes_total is None:
        return None
    return sum(count for word, count in summary.realised.items() if word.removesuffix("-weights") in FORMATS)


def _figures(first: Report, second: Report) -> tuple[FigurePair, ...]:
    left, right = first.summary, second.summary
    counted = (
        ("Compute nodes", left.nodes_total, right.nodes_total),
        ("of them quantized (recorded)", _count_quantized(left), _count_quantized(right)),
        ("Kernels (recorded)", left.kernels, right.kernels),
        ("only quantize, cast or reformat (recorded)", left.qdq_kernels, right.qdq_kernels),
    )
    sized = (
        (
            "Activation bytes as dumped (recorded)",
            left.activation_bytes_dumped,
            right.activation_bytes_dumped,
        ),
        ("with fused epilogues (estimated)", left.activation_bytes_fused, right.activation_bytes_fused),
        ("Engine size (measured)", left.engine_bytes, right.engine_bytes),
    )
    rows = [FigurePair(name="Builder", first=left.builder, second=right.builder, change="")]
    rows += _accuracies(first, second)
    rows += [
        FigurePair(name=name, first=_count(a), second=_count(b), change=_step(a, b)) for name, a, b in counted
    ]
    rows += [
        FigurePair(name=name, first=words.size(a), second=words.size(b), change=_share(a, b))
        for name, a, b in sized
    ]
    times = [sum(layer.ms for layer in report.layers if layer.ms) or None for report in (first, second)]
    if any(times):
        shown = [f"{time:.4g} ms" if time else words.UNKNOWN for time in times]
        rows.append(
            FigurePair(
                name="Time of all layers (measured)", first=shown[0], second=shown[1], change=_share(*times)
            )
        )
    return tuple(row for row in rows if {row.first, row.second} - {"", words.UNKNOWN})


def _kinds(first: Report, second: Report) -> tuple[KindPair, ...]:
    """Count findings of both runs by code, the largest difference first."""
    left, right = (
        {
            group.code: (group.name, Counter(stem(finding.subject) for finding in group.findings))
            for group in groups(side)
        }
        for side in (first, second)
    )
    pairs = []
    for code in dict.fromkeys((*left, *right)):
        name, _ = left.get(code) or right[code]
        a, b = (side[code][1] if code in side else Counter[str]() for side in (left, right))
        pairs.append(
            KindPair(
                code=code,
                name=name,
                first=a.total(),
                second=b.total(),
                gone=tuple(sorted((a - b).elements())),
                new=tuple(sorted((b - a).elements())),
            )
        )
    return tuple(sorted(pairs, key=lambda pair: (-abs(pair.second - pair.first), pair.code)))


def _accuracies(first: Report, second: Report) -> Iterator[FigurePair]:
    """Yield SQNR, then every task metric that a run has: classes, boxes, words."""
    left, right = (_measures(report.comparison) for report in (first, second))
    for name in dict.fromkeys((*left, *right)):
        (a, unit), (b, _) = (side.get(name, (None, "")) for side in (left, right))
        unit = unit or right.get(name, (None, ""))[1]
        step = "" if a is None or b is None else f"{b - a:+.2f} {'points' if unit == '%' else unit}".rstrip()
        shown = [
            words.UNKNOWN if value is None else f"{words.number(value)} {unit}".rstrip() for value in (a, b)
        ]
        yield FigurePair(name=name, first=shown[0], second=shown[1], change=step)


def _measures(comparison: Comparison | None) -> dict[str, tuple[float | None, str]]:
    """Return the figures of a run by name: value and unit. With random samples, the name says so."""
    if comparison is None:
        return {}
    source = "measured" if comparison.meaningful else "random samples: meaningless"
    levels = [level for output in comparison.outputs if (level := words.sqnr(output)) is not None]
    figures: dict[str, tuple[float | None, str]] = {}
    if levels:
        noisiest = " of the noisiest output" if len(comparison.outputs) > 1 else ""
        figures[f"SQNR{noisiest} ({source})"] = min(levels), "dB"
    for entry in comparison.task:
        figures[f"{metric(entry.metric)} ({source})"] = entry.candidate, entry.unit
    return figures


def _nodes(first: tuple[NodeVerdict, ...], second: tuple[NodeVerdict, ...]) -> tuple[NodePair, ...]:
    left, right = ({verdict.node: verdict for verdict in side} for side in (first, second))
    pairs = []
    for node in dict.fromkeys((*left, *right)):
        a, b = left.get(node), right.get(node)
        some = b or a
        if some is not None and _verdict_text(a) != _verdict_text(b):
            reason = next((side.reason for side in (b, a) if side is not None and side.reason), "")
            pairs.append(
                NodePair(
                    node=node, op=some.op, first=_verdict_text(a), second=_verdict_text(b), reason=reason
                )
            )
    return tuple(pairs)


def _verdict_text(verdict: NodeVerdict | None) -> str:
    return "absent" if verdict is None else verdict.verdict.value


def _costs(first: Report, second: Report) -> tuple[CostPair, ...]:
    """Return the nodes of both runs whose layers differ, the largest change first.

    If the runs share no node name but have equally many compute layers, these layers are paired in launch order.
    """
    left, right = _by_node(first), _by_node(second)
    names = [(node, node) for node in left if node in right]
    if not names:
        left, right = _compute(first), _compute(second)
        names = list(zip(left, right, strict=True)) if len(left) == len(right) else []
    pairs = [
        CostPair(
            node=a if a == b else f"{a} / {b}",
            first_kernels=left[a].kernels,
            second_kernels=right[b].kernels,
            first_bytes=left[a].bytes,
            second_bytes=right[b].bytes,
            first_ms=left[a].ms,
            second_ms=right[b].ms,
        )
        for a, b in names
        if left[a] != right[b]
    ]
    return tuple(sorted(pairs, key=lambda pair: (-_weight(pair), pair.node)))


@dataclass(frozen=True, slots=True)
class _Cost:
    """Kernels, bytes and milliseconds of a part of an engine; None for unknown bytes."""

    kernels: int = 0
    bytes: int | None = 0
    ms: float | None = None

    def with_layer(self, layer: LayerRow) -> _Cost:
        ms = self.ms if layer.ms is None else (self.ms or 0.0) + layer.ms
        is_sized = self.bytes is not None and layer.bytes is not None
        return _Cost(self.kernels + 1, (self.bytes or 0) + (layer.bytes or 0) if is_sized else None, ms)


def _weight(pair: CostPair) -> float:
    if pair.first_ms is not None and pair.second_ms is not None:
        return abs(pair.first_ms - pair.second_ms)
    if pair.first_bytes is None or pair.second_bytes is None:
        return 0.0
    return abs(pair.first_bytes - pair.second_bytes)


def _by_node(report: Report) -> dict[str, _Cost]:
    """Return kernels, bytes and milliseconds by ONNX node. A layer with several nodes counts for its main node."""
    costs: dict[str, _Cost] = {}
    for layer in report.layers:
        node = main_node(layer)
        if node is not None and layer.role is not Role.NONE:
            costs[node] = costs.get(node, _Cost()).with_layer(layer)
    return costs


def _compute(report: Report) -> dict[str, _Cost]:
    """Return kernels, bytes and milliseconds of each compute layer, in launch order."""
    costs: dict[str, _Cost] = {}
    for layer in (layer for layer in report.layers if layer.role is Role.COMPUTE):
        name = main_node(layer) or layer.name
        costs[name] = costs.get(name, _Cost()).with_layer(layer)
    return costs


def _count(value: int | None) -> str:
    return words.UNKNOWN if value is None else str(value)


def _step(first: int | None, second: int | None) -> str:
    return "" if first is None or second is None else f"{second - first:+d}"


def _share(first: float | None, second: float | None) -> str:
    return "" if not first or second is None else f"{100 * (second - first) / first:+.1f} %"
