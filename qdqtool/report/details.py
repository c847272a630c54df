"""Everything about one engine layer, ready to be shown when somebody clicks on it."""

from __future__ import annotations

from collections import defaultdict
from typing import TypedDict

from qdqtool.core.engine import Certainty
from qdqtool.core.events import LedgerRow
from qdqtool.core.findings import Finding, NodeVerdict
from qdqtool.core.history import LayerHistory
from qdqtool.core.report import LayerRow, Report
from qdqtool.io.escaping import xml_line
from qdqtool.report import words
from qdqtool.report.graph import BoxMark, describe
from qdqtool.trt.histories import event_words, fate_words, myelin_words, tuning_words


class Told(TypedDict):
    """One finding: what is wrong, and what to do."""

    severity: str
    title: str
    reason: str
    fix: str


class Detail(TypedDict):
    """One layer: facts are pairs of name and value, lists have a title and lines."""

    name: str
    find: str
    facts: list[tuple[str, str]]
    findings: list[Told]
    lists: list[tuple[str, list[str]]]


def details(report: Report) -> list[Detail]:
    """One entry per layer in launch order; `find` is what a search looks through, in lower case."""
    fates = {row.node: row for row in report.ledger}
    judged = {verdict.node: verdict for verdict in report.verdicts}
    found = findings_of(report)
    return [_detail(layer, own, fates, judged) for layer, own in zip(report.layers, found, strict=True)]


def findings_of(report: Report) -> list[list[Finding]]:
    """The findings about each layer: about itself, one of its ONNX nodes, or one of its tensors."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for entry in report.findings:
        found[entry.subject].append(entry)
    return [
        [entry for subject in _subjects(layer) for entry in found.get(subject, ())] for layer in report.layers
    ]


def marks(report: Report) -> dict[int, BoxMark]:
    """How many findings each layer has, by its number; layers without are left out."""
    return {
        number: BoxMark(
            count=len(own), severity=max((entry.severity for entry in own), key=lambda found: found.rank)
        )
        for number, own in enumerate(findings_of(report))
        if own
    }


def _subjects(layer: LayerRow) -> tuple[str, ...]:
    tensors = (*layer.inputs, *layer.constants, *layer.outputs)
    return tuple(dict.fromkeys((layer.name, *layer.onnx_nodes, *(tensor.name for tensor in tensors))))


def _detail(
    layer: LayerRow, findings: list[Finding], fates: dict[str, LedgerRow], judged: dict[str, NodeVerdict]
) -> Detail:
    history = layer.history or LayerHistory()
    searched = [tuning_words(history.tuning)] if history.tuning else []
    lists = [
        ("ONNX nodes", [_node(name, judged.get(name)) for name in layer.onnx_nodes]),
        ("Inputs", [describe(tensor) for tensor in layer.inputs]),
        ("Weights and constants", [describe(tensor) for tensor in layer.constants]),
        ("Outputs", [describe(tensor) for tensor in layer.outputs]),
        (
            "Q and DQ nodes that ended here",
            [fate_words(fates[name]) for name in history.qdq if name in fates],
        ),
        ("What the optimizer did", [event_words(event) for event in history.events]),
        ("Search for the kernel", [*searched, *map(myelin_words, history.myelin)]),
    ]
    return Detail(
        name=xml_line(layer.name),
        find=xml_line(
            "\n".join((layer.kind, layer.tactic, layer.precision.value, *_subjects(layer))).lower()
        ),
        facts=[(name, xml_line(value)) for name, value in _facts(layer) if value],
        findings=[_told(entry) for entry in findings],
        lists=[(title, [xml_line(line) for line in lines]) for title, lines in lists if lines],
    )


def _told(entry: Finding) -> Told:
    about = f"{entry.severity.value} {entry.code}: {entry.check.replace('_', ' ')}"
    reason, fix = xml_line(entry.reason), xml_line(entry.fix)
    return Told(severity=entry.severity.value, title=xml_line(about), reason=reason, fix=fix)


def _facts(layer: LayerRow) -> list[tuple[str, str]]:
    guess = "" if layer.certainty is Certainty.STATED else f" ({layer.certainty.value})"
    return [
        ("Type", layer.kind),
        ("Precision", f"{layer.precision}{guess}"),
        ("Role", layer.role.value),
        ("Kernel", layer.tactic),
        ("Time", "" if layer.ms is None else f"{layer.ms:.4g} ms (measured)" if layer.ms else "0 ms: elided"),
        ("Activations", "" if layer.bytes is None else words.size(layer.bytes)),
        ("Weights", words.size(layer.weight_bytes) if layer.weight_bytes else ""),
        ("MACs", "" if layer.macs is None else f"{layer.macs:,}"),
        ("As a GEMM", "M {:,}, N {:,}, K {:,}".format(*layer.gemm) if layer.gemm else ""),
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
