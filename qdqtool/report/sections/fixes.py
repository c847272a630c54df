"""Faults and their fixes: compute nodes that are not quantized, and findings by kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qdqtool.core.findings import Finding, Severity
from qdqtool.core.report import Fallback, Report
from qdqtool.core.wording import listed
from qdqtool.report import words
from qdqtool.report.section import Block, Entry, Section

_NAMED = 3
"""Number of nodes with the same reason that are named; the others are counted."""
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}

_PAGE = r"""
{% if report.fallbacks or report.findings %}
<h2 id="fixes-{{ run.key }}">What to fix</h2>
{% elif report.verdicts %}
<h2 id="fixes-{{ run.key }}">What to fix</h2>
<p>Nothing: every compute node runs as requested, and no check has findings.</p>
{% endif %}
{% if report.fallbacks %}
<h3>Compute nodes that are not quantized in the engine</h3>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Node", "Op", "Runs as", "Reason", "Fix", "Requested"]) }}
<tbody>
{% for entry in report.fallbacks %}
<tr><td>{{ m.goto(run, entry.node) }}</td><td class="short">{{ entry.op }}</td><td class="short">{{ entry.precision }}</td><td>{{ entry.reason | prose }}</td><td>{{ entry.fix | prose }}</td><td>{{ "yes" if entry.requested else "no" }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% if run.groups | map(attribute="severity") | unique | list | length > 1 %}
<div class="bar-of-tools" role="group" aria-label="Findings of which severity"><button type="button" data-severity="" aria-pressed="true">All findings</button>{% for level in ["error", "warning", "info"] %}{% set count = run.groups | selectattr("severity.value", "equalto", level) | map(attribute="findings") | sum(start=()) | length %}{% if count %} <button type="button" data-severity="{{ level }}" aria-pressed="false">{{ count }} {{ level }}</button>{% endif %}{% endfor %}</div>
{% endif %}
{% for group in run.groups %}
<details class="group" data-level="{{ group.severity.value }}"{% if group.severity.rank or loop.first %} open{% endif %}>
<summary><b class="{{ group.severity.value }}">{{ group.severity.value }}</b> <b>{{ group.findings | length }} &times; {{ group.name }}</b> <span class="soft">{{ group.code }}{% if group.bytes %}, {{ words.size(group.bytes) }} at stake (estimated){% endif %}{% if group.ms %}, {{ "%.4g ms" | format(group.ms) }} (measured){% endif %}</span>{% if group.hazard %}<br>{{ group.hazard }}{% endif %}</summary>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["About", "What happened", "What to do", "Bytes at stake", "Evidence"], ["Bytes at stake"]) }}
<tbody>
{% for finding in group.findings %}
<tr><td>{{ m.goto(run, finding.subject) }}</td><td>{{ finding.reason | prose }}</td><td>{{ finding.fix | prose }}</td><td class="number" data-value="{{ finding.bytes or "" }}">{{ words.size(finding.bytes) if finding.bytes else "" }}</td><td>{% for file, place in finding.evidence | places %}<span class="soft" title="{{ file }}">{{ file | brief }}</span> <code>{{ place }}</code><br>{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div>
{% if run.manual(group.code) %}
<details class="manual"><summary>What {{ group.code }} means</summary><pre id="page-{{ group.code }}-{{ run.key }}">{{ run.manual(group.code) }}</pre></details>
{% endif %}
</details>
{% endfor %}
"""


def _blocks(report: Report) -> Iterator[Block]:
    grave = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    yield Block(title="Not quantized", entries=tuple(_fallbacks(report.fallbacks)))
    yield Block(title="Findings", entries=tuple(_findings(grave)))


def _fallbacks(entries: Sequence[Fallback]) -> list[Entry]:
    """Return one entry per reason, so that a problem that repeats in every block of a network appears once."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for entry in entries:
        groups.setdefault((entry.precision, entry.reason, entry.fix), []).append(f"{entry.node} ({entry.op})")
    return [
        (f"{listed(nodes, _NAMED)} {precision}: {reason}", fix, None)
        for (precision, reason, fix), nodes in groups.items()
    ]


def _findings(findings: Sequence[Finding]) -> list[Entry]:
    """Return one entry per reason, with the total cost of all its subjects."""
    groups: dict[tuple[Severity, str, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.severity, finding.code, finding.reason, finding.fix), []).append(finding)
    return [_alike(group) for group in groups.values()]


def _alike(group: Sequence[Finding]) -> Entry:
    first, stake = group[0], sum(finding.bytes or 0 for finding in group)
    cost = f" [{words.size(stake)} at stake, estimated]" if stake else ""
    subjects = listed([finding.subject for finding in group], _NAMED)
    what = f"{first.severity.value} {first.code} {subjects}: {first.reason}{cost}"
    return what, first.fix, _STYLES[first.severity]


PLUGIN = Section(
    order=40,
    title="What to fix",
    shown=lambda report: report.fallbacks or report.findings or report.verdicts,
    page=_PAGE,
    blocks=_blocks,
)
