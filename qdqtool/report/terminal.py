"""The report on a terminal: ten seconds of reading, the verdict first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from qdqtool.core.comparison import Comparison
from qdqtool.core.findings import Finding, Severity
from qdqtool.core.report import Fallback, Report, Summary
from qdqtool.core.sensitivity import Sensitivity
from qdqtool.io.escaping import printable
from qdqtool.report import sensitivity, words

if TYPE_CHECKING:
    from rich.console import Console

_SHOWN = 8
"""Entries of a list that are shown; the rest is counted."""
_NAMED = 3
"""Nodes with the same reason that are named; the rest is counted."""
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}
Measured = Mapping[str, Mapping[str, float]]
"""What each step cost here: `seconds`, and `peak_mib` where it is known."""


def render(report: Report, console: Console, measured: Measured | None = None) -> None:
    """Print the summary; names are printed as they are, never as markup."""
    summary = report.summary
    _say(console, words.verdict(summary), style="bold")
    _say(console, " -> ".join(part for part in (summary.model, summary.builder) if part))
    _say(console, "")
    for name, text in _rows(report):
        _say(console, f"{name:<12} {text}")
    _list(console, "Not INT8", _fallbacks(report.fallbacks))
    loud = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    _list(console, "Findings", _findings(loud))
    _list(console, "Notes", [(note, "", None) for note in report.notes])
    if measured:
        _costs(console, measured)


def render_comparison(comparison: Comparison, console: Console) -> None:
    """Print how far two models are apart, and which samples suffer most."""
    _say(
        console,
        f"{comparison.reference} -> {comparison.candidate}, {comparison.samples} samples",
        style="bold",
    )
    for name, text in _accuracy(comparison):
        _say(console, f"{name:<12} {text}")
    for found in comparison.explanations:
        _say(console, f"{'Why':<12} {found.output}: {words.cause(found)}")
    noisy = sorted(
        (level, entry.output) for entry in comparison.tensors if (level := words.sqnr(entry)) is not None
    )
    _list(
        console,
        "Noisiest tensors inside",
        [(f"{name}: SQNR {level:.1f} dB", "", None) for level, name in noisy],
    )
    worst = [
        (f"{entry.sample}: SQNR {entry.sqnr_db:.1f} dB in {entry.output}", "", None)
        for entry in comparison.worst
    ]
    _list(console, "Worst samples", worst)
    _list(console, "Notes", [(note, "", None) for note in comparison.notes])


def render_sensitivity(found: Sensitivity, console: Console) -> None:
    """Print which nodes cost most, and which ones to keep float."""
    if not found.meaningful:
        _say(console, "random samples: these figures mean nothing", style="yellow")
    for line in sensitivity.lines(found):
        _say(console, line)
    told = sensitivity.advice(found)
    if told:
        _say(console, "")
        _say(console, told, style="bold")
    _list(console, "Notes", [(note, "", None) for note in found.notes])


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    summary = report.summary
    if report.comparison is not None:
        yield from _accuracy(report.comparison)
    if summary.kernels is not None:
        compute, convert = words.count(summary.compute_kernels), words.count(summary.qdq_kernels)
        yield (
            "Kernels",
            f"{summary.kernels}: {compute} compute, {convert} only quantize, cast or reformat  [recorded]",
        )
        yield "Activations", _activations(summary)
    if summary.engine_bytes is not None:
        yield "Engine", f"{words.size(summary.engine_bytes)}  [measured]"
    if summary.nodes_total is not None:
        yield "Findings", words.severities(summary.findings)


def _accuracy(comparison: Comparison) -> Iterator[tuple[str, str]]:
    caveat = words.accuracy_caveat(comparison)
    source = f"  [{caveat}]" if caveat else "  [measured]"
    for entry in comparison.task:
        verdict = "" if caveat else words.noise(entry)
        yield "Accuracy", f"{words.task(entry)}{f': {verdict}' if verdict else ''}{source}"
    for output in comparison.outputs[:_SHOWN]:
        yield "Output", f"{output.output}: {', '.join(map(words.measure, output.measures))}{source}"
    if len(comparison.outputs) > _SHOWN:
        yield "Output", f"and {len(comparison.outputs) - _SHOWN} more outputs"


def _activations(summary: Summary) -> str:
    dumped, fused = summary.activation_bytes_dumped, summary.activation_bytes_fused
    if dumped is None:
        return "bytes unknown: a shape or a type is dynamic or not understood"
    return f"{words.size(dumped)} [recorded], {words.size(fused)} with fused epilogues [estimated]"


Entry = tuple[str, str, str | None]
"""What, how to mend it, and a style."""


def _fallbacks(entries: Sequence[Fallback]) -> list[Entry]:
    """One entry per reason: a gate in every block of a network is one thing to know, not forty."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for entry in entries:
        groups.setdefault((entry.precision, entry.reason, entry.fix), []).append(f"{entry.node} ({entry.op})")
    return [
        (f"{_some(nodes)} {precision}: {reason}", fix, None)
        for (precision, reason, fix), nodes in groups.items()
    ]


def _some(nodes: Sequence[str]) -> str:
    if len(nodes) <= _NAMED:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:_NAMED])} and {len(nodes) - _NAMED} more"


def _findings(findings: Sequence[Finding]) -> list[Entry]:
    """One entry per reason, with what all its subjects cost together."""
    groups: dict[tuple[Severity, str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.code, finding.reason, finding.fix), []).append(finding)
    return [_alike(group) for group in groups.values()]


def _alike(group: Sequence[Finding]) -> Entry:
    first, stake = group[0], sum(finding.bytes or 0 for finding in group)
    cost = f" [{words.size(stake)} at stake, estimated]" if stake else ""
    subjects = _some([finding.subject for finding in group])
    what = f"{first.severity.value} {first.code} {subjects}: {first.reason}{cost}"
    return what, first.fix, _STYLES[first.severity]


def _list(console: Console, title: str, entries: Sequence[Entry]) -> None:
    if not entries:
        return
    _say(console, "")
    _say(console, f"{title}:", style="bold")
    for what, fix, style in entries[:_SHOWN]:
        _say(console, f"  {what}", style=style)
        if fix:
            _say(console, f"    fix: {fix}")
    if len(entries) > _SHOWN:
        _say(console, f"  and {len(entries) - _SHOWN} more")


def _costs(console: Console, measured: Measured) -> None:
    _say(console, "")
    _say(console, "Cost of the steps here  [measured]", style="bold")
    for step, cost in measured.items():
        peak = f", peak {cost['peak_mib']:.0f} MiB" if "peak_mib" in cost else ""
        seconds = f"{cost['seconds']:.1f} s" if "seconds" in cost else words.UNKNOWN
        _say(console, f"  {step:<12} {seconds}{peak}")


def _say(console: Console, text: str, style: str | None = None) -> None:
    """One line; control characters from names are shown, not sent to the terminal."""
    console.print(printable(text), style=style, markup=False, highlight=False, emoji=False)
