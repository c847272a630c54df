"""Everything about one engine layer, ready to be shown when somebody clicks on it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypedDict

from qdqtool.core.engine import Certainty
from qdqtool.core.events import LedgerRow
from qdqtool.core.findings import Finding, NodeVerdict
from qdqtool.core.report import LayerRow, Report
from qdqtool.report import words
from qdqtool.report.graph import describe
from qdqtool.report.svg import clean


class Detail(TypedDict):
    """One layer: facts are pairs of name and value, lists have a title and lines."""

    name: str
    find: str
    facts: list[tuple[str, str]]
    lists: list[tuple[str, list[str]]]


def details(report: Report) -> list[Detail]:
    """One entry per layer in launch order; `find` is what a search looks through, in lower case."""
    found = _by_subject(report.findings)
    fate = _by_place(report.ledger)
    judged = {verdict.node: verdict for verdict in report.verdicts}
    return [_detail(layer, found, fate, judged) for layer in report.layers]


def _detail(
    layer: LayerRow,
    findings: dict[str, list[Finding]],
    ledger: dict[str, list[LedgerRow]],
    judged: dict[str, NodeVerdict],
) -> Detail:
    tensors = (*layer.inputs, *layer.constants, *layer.outputs)
    subjects = dict.fromkeys((layer.name, *layer.onnx_nodes, *(tensor.name for tensor in tensors)))
    lists = [
        ("ONNX nodes", [_node(name, judged.get(name)) for name in layer.onnx_nodes]),
        ("Findings", [_finding(entry) for subject in subjects for entry in findings.get(subject, ())]),
        ("Inputs", [describe(tensor) for tensor in layer.inputs]),
        ("Weights and constants", [describe(tensor) for tensor in layer.constants]),
        ("Outputs", [describe(tensor) for tensor in layer.outputs]),
        ("Q and DQ nodes", _fates(ledger, (layer.name, *layer.onnx_nodes))),
    ]
    words_of_layer = [layer.name, layer.kind, layer.tactic, layer.precision.value, *subjects]
    return Detail(
        name=clean(layer.name),
        find=clean("\n".join(words_of_layer).lower()),
        facts=[(name, clean(value)) for name, value in _facts(layer) if value],
        lists=[(title, [clean(line) for line in lines]) for title, lines in lists if lines],
    )


def _facts(layer: LayerRow) -> list[tuple[str, str]]:
    guess = "" if layer.certainty is Certainty.STATED else f" ({layer.certainty.value})"
    return [
        ("Type", layer.kind),
        ("Precision", f"{layer.precision}{guess}"),
        ("Role", layer.role.value),
        ("Kernel", layer.tactic),
        ("Time", "" if layer.ms is None else f"{layer.ms:.4g} ms (measured)"),
        ("Activations", words.size(layer.bytes)),
        ("Weights", "" if layer.weight_bytes is None else words.size(layer.weight_bytes)),
        ("MACs", "" if layer.macs is None else f"{layer.macs:,}"),
        ("Intensity", "" if layer.intensity is None else f"{layer.intensity:.4g} MACs/byte"),
        ("Achieved", "" if layer.tflops is None else f"{layer.tflops:.3g} TFLOP/s (measured)"),
        ("Memory", "" if layer.gbs is None else f"{layer.gbs:.4g} GB/s (measured)"),
        ("Bound by", layer.bound),
    ]


def _node(name: str, verdict: NodeVerdict | None) -> str:
    if verdict is None:
        return name
    reason = f": {verdict.reason}" if verdict.reason else ""
    fix = f" Fix: {verdict.fix}" if verdict.fix else ""
    return f"{name} ({verdict.op}) {verdict.verdict.value}{reason}{fix}"


def _finding(entry: Finding) -> str:
    return f"{entry.severity.value} {entry.code} {entry.subject}: {entry.reason} Fix: {entry.fix}"


def _fates(ledger: dict[str, list[LedgerRow]], places: Iterable[str]) -> list[str]:
    rows = {row.node: row for place in places for row in ledger.get(place, ())}
    return [f"{row.kind} {row.node}: {row.end}{f' {row.into}' if row.into else ''}" for row in rows.values()]


def _by_subject(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    grouped: dict[str, list[Finding]] = defaultdict(list)
    for entry in findings:
        grouped[entry.subject].append(entry)
    return grouped


def _by_place(ledger: Iterable[LedgerRow]) -> dict[str, list[LedgerRow]]:
    """Ledger rows under the Q or DQ node's own name and under what it became part of."""
    grouped: dict[str, list[LedgerRow]] = defaultdict(list)
    for row in ledger:
        for place in {row.node, row.into} - {""}:
            grouped[place].append(row)
    return grouped
