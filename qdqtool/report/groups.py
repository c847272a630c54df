"""Findings grouped by check, with their total cost."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import fsum

from qdqtool.core.findings import Evidence, Finding, Severity
from qdqtool.core.report import LayerRow, Report


@dataclass(frozen=True, kw_only=True, slots=True)
class FindingGroup:
    """Findings of one check.

    Attributes:
        code: the check's code.
        name: its name in words.
        severity: the worst of its findings.
        hazard: what is bad about them.
        findings: in the order of their layers.
        bytes: activation bytes at stake together, as far as they are known; 0 if none are.
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
    """Group findings by check: most severe first, then most expensive; within a check in launch order."""
    order = {
        name: place for place, layer in reversed(list(enumerate(report.layers))) for name in _names(layer)
    }
    times = {layer.name: layer.ms or 0.0 for layer in report.layers}
    found: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for entry in sorted(report.findings, key=lambda entry: order.get(entry.subject, len(order))):
        found[entry.code, entry.check].append(entry)
    made = [_group(code, check, entries, times) for (code, check), entries in found.items()]
    return tuple(sorted(made, key=lambda group: (-group.severity.rank, -group.ms, -group.bytes, group.code)))


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


def places(evidence: tuple[Evidence, ...]) -> list[tuple[str, str]]:
    """Group evidence by file: the file's name, and the places in it."""
    found: dict[str, list[str]] = defaultdict(list)
    for entry in evidence:
        found[entry.file].append(entry.place)
    return [(file, ", ".join(dict.fromkeys(names))) for file, names in found.items()]
