"""The top of the report: the verdict, its figures, and what to fix.

# verdict
The result of the run: one word with its reasons, and a word per area.

# summary
The headline figures, and the notes of all steps.

# fixes
Faults and their fixes: compute nodes that are not quantized, and findings by kind.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from qdqtool.core.advice import settings_in
from qdqtool.core.findings import Finding, Severity
from qdqtool.core.report import Fallback, Report, Summary
from qdqtool.core.wording import list_names
from qdqtool.report import words
from qdqtool.report.rows import alike
from qdqtool.report.section import Block, Entry, Row, Section
from qdqtool.report.words import accuracy_rows, input_rows

# --- verdict -----------------------------------------------------------------------------------------------------------


_VERDICT_PAGE = r"""
{% set summary = report.summary %}
{% set judged = summary.verdict %}
{% set is_built = report.layers or report.verdicts or summary.builder %}
{% set is_study = not is_built and (report.comparison or report.sensitivity or report.ranges) %}
{% if report.comparison and is_built %}<p class="verdict {{ judged.answer }}"><strong>{{ judged.answer }}</strong></p>{% endif %}

<h1>{{ words.title(report) }}</h1>
{% if not is_study %}<p title="{{ summary.model }}">{{ summary.model | brief }}{% if summary.builder %}, built by {{ summary.builder }}{% endif %}</p>{% endif %}
{% set codes = run.groups | map(attribute="code") | list %}
{% if not is_study %}
<ul class="answers" aria-label="Evidence for the verdict">
{% for question, answer in judged.answers %}
{% set code, rest = answer.evidence.partition(" ")[::2] %}
<li class="{{ answer.level(question) }}">{{ titles[question] }} <b>{{ answer.state }}</b> <span>{% if code in codes and run.manual(code) %}<a href="#page-{{ code }}-{{ run.key }}">{{ code }}</a> {{ rest | prose }}{% else %}{{ answer.evidence | prose }}{% endif %}</span></li>
{% endfor %}
</ul>
{% endif %}
{% if report.comparison and is_built and judged.settle %}<p class="settle">To settle it: <code>{{ words.settling(judged.settle) }}</code></p>{% endif %}
{% if summary.assumptions %}
<details class="assumptions"><summary>{{ summary.assumptions | length }} assumption{% if summary.assumptions | length != 1 %}s{% endif %} about the inputs{% if summary.assumptions | selectattr("is_guessed") | list %}, some of them guessed{% endif %}</summary>
<div class="wide-table" tabindex="0"><table><thead><tr><th scope="col">What</th><th scope="col">Value</th><th scope="col">Source</th></tr></thead>
<tbody>{% for entry in summary.assumptions %}<tr><th scope="row">{{ entry.what }}</th><td>{{ entry.value }}</td><td>{{ entry.source }}</td></tr>{% endfor %}</tbody></table></div></details>
{% endif %}
"""


# --- summary -----------------------------------------------------------------------------------------------------------


_KEPT_FLOAT = "float_shortcut"
"""The check for Adds that placement keeps float although INT8 copies of their inputs exist."""
_SUMMARY_PAGE = r"""
{% set summary = report.summary %}
<div class="tiles" id="summary-{{ run.key }}">
{% if report.comparison %}
{% set caveat = words.accuracy_caveat(report.comparison) %}
{% for entry in report.comparison.task %}
{{ m.tile("Accuracy, " ~ (entry.metric | metric_name), "%.1f → %.1f %s" | format(entry.reference, entry.candidate, entry.unit), caveat or "measured", words.spread(entry, meaningful=not caveat)) }}
{% endfor %}
{% for output in report.comparison.outputs[:3] %}
{{ m.tile("Output " ~ output.output, words.headline(output), caveat or "measured", words.other_measures(output)) }}
{% endfor %}
{% endif %}
{% if summary.kernels is not none %}
{{ m.tile("Kernels", summary.kernels, "recorded", "%s compute, %s only quantize, cast or reformat" | format(words.count(summary.compute_kernels), words.count(summary.qdq_kernels))) }}
{% endif %}
{% if summary.activation_bytes_dumped is not none %}
{{ m.tile("Activation bytes as dumped", words.size(summary.activation_bytes_dumped), "recorded", "written and read between kernels") }}
{% if summary.activation_bytes_fused != summary.activation_bytes_dumped %}
{{ m.tile("Activation bytes, epilogues fused", words.size(summary.activation_bytes_fused), "estimated") }}
{% endif %}
{% endif %}
{% for finding in report.findings if finding.check == "float_shortcut" and finding.bytes %}
{{ m.tile("Bytes kept float", words.size(finding.bytes), "estimated", finding.fix) }}
{% endfor %}
{% set time = run.time %}
{% if time %}{{ m.tile("Time of all kernels", "%.4g ms" | format(time), "measured", "kernel by kernel; a normal inference takes less") }}{% endif %}
{% if summary.engine_bytes is not none %}{{ m.tile("Engine", words.size(summary.engine_bytes), "measured") }}{% endif %}
{% if report.findings or summary.nodes_total is not none %}
{{ m.tile("Findings", summary.findings.values() | sum, "recorded", words.severities(summary.findings)) }}
{% endif %}
</div>
{% if report.notes %}
<ul class="notes">{% for note in report.notes %}<li>{{ note | prose }}</li>{% endfor %}</ul>
{% endif %}
"""


def _summary_rows(report: Report) -> Iterator[Row]:
    summary = report.summary
    if report.comparison is not None:
        yield from accuracy_rows(report.comparison)
    if summary.kernels is not None:
        compute, convert = words.count(summary.compute_kernels), words.count(summary.qdq_kernels)
        yield (
            "Kernels",
            f"{summary.kernels}: {compute} compute, {convert} only quantize, cast or reformat  [recorded]",
        )
        yield "Activations", _activations(summary)
        for finding in report.findings:
            if finding.check == _KEPT_FLOAT and finding.bytes:
                yield "Kept float", _float_copies(finding)
    if summary.engine_bytes is not None:
        yield "Engine", f"{words.size(summary.engine_bytes)}  [measured]"
    if summary.nodes_total is not None:
        yield "Findings", words.severities(summary.findings)
    yield from input_rows(summary.assumptions)


def _activations(summary: Summary) -> str:
    dumped, fused = summary.activation_bytes_dumped, summary.activation_bytes_fused
    if dumped is None:
        return "bytes unknown: a shape or a type is dynamic or not understood"
    return f"{words.size(dumped)} [recorded], {words.size(fused)} with fused epilogues [estimated]"


def _float_copies(finding: Finding) -> str:
    """Return how many bytes float copies of INT8 tensors add, and the setting that avoids them, if any."""
    settings = " ".join(f"--set {shlex.quote(text)}" for text in settings_in(finding.fix))
    subject = finding.reason.partition(":")[0]
    way = f"; without: {settings}" if settings else ""
    return f"{subject}: {words.size(finding.bytes or 0)} more [estimated]{way}"


# --- fixes -------------------------------------------------------------------------------------------------------------


_NAMED = 3
"""Number of nodes with one reason that are named; all further nodes are counted."""
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}

_FIXES_PAGE = r"""
{% if report.fallbacks or report.findings %}
<h2 id="fixes-{{ run.key }}">What to fix</h2>
{% elif report.verdicts %}
<h2 id="fixes-{{ run.key }}">What to fix</h2>
<p>Nothing: every compute node runs as requested, and no check has findings.</p>
{% endif %}
{% if report.fallbacks %}
<h3>Compute nodes that are not quantized in the engine</h3>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Nodes", "Op", "Runs as", "Reason", "Fix", "Requested"]) }}
<tbody>
{% for alike in report.fallbacks | alike("precision", "reason", "fix", "requested") %}
{% set entry = alike[0] %}
<tr><td>{{ m.nodes(run, alike | map(attribute="node") | list) }}</td><td class="short">{{ alike | map(attribute="op") | unique | join(", ") }}</td><td class="short" data-head="Runs as">{{ entry.precision }}</td><td>{{ entry.reason | prose }}</td><td data-head="Fix">{{ entry.fix | prose }}</td><td data-head="Requested">{{ "yes" if entry.requested else "no" }}</td></tr>
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
{% for alike in group.findings | alike("reason", "fix") %}
{% set finding = alike[0] %}
{% set stake = alike | map(attribute="bytes") | select | sum %}
<tr><td>{{ m.nodes(run, alike | map(attribute="subject") | list) }}</td><td>{{ finding.reason | prose }}</td><td data-head="Fix">{{ finding.fix | prose }}</td><td class="number" data-head="At stake" data-value="{{ stake or "" }}">{{ words.size(stake) if stake else "" }}</td><td>{% for file, place in alike | map(attribute="evidence") | sum(start=()) | places %}<span class="soft" title="{{ file }}">{{ file | brief }}</span> <code>{{ place }}</code><br>{% endfor %}</td></tr>
{% endfor %}
</tbody></table></div>
{% if run.manual(group.code) %}
<details class="manual"><summary>What {{ group.code }} means</summary><pre id="page-{{ group.code }}-{{ run.key }}">{{ run.manual(group.code) }}</pre></details>
{% endif %}
</details>
{% endfor %}
"""


def _fixes_blocks(report: Report) -> Iterator[Block]:
    grave = [finding for finding in report.findings if finding.severity is not Severity.INFO]
    yield Block(title="Not quantized", entries=tuple(_fallbacks(report.fallbacks)))
    yield Block(title="Findings", entries=tuple(_findings(grave)))


def _fallbacks(entries: Sequence[Fallback]) -> list[Entry]:
    """Return the compute nodes that are not quantized, or not as requested, with an entry per reason."""
    return [
        (
            f"{list_names([f'{entry.node} ({entry.op})' for entry in group], _NAMED)} {group[0].precision}: {group[0].reason}",
            group[0].fix,
            None,
        )
        for group in alike(entries, "precision", "reason", "fix")
    ]


def _findings(findings: Sequence[Finding]) -> list[Entry]:
    """Return the findings, with one entry per reason and the total cost of all subjects."""
    return [_alike(group) for group in alike(findings, "severity", "code", "reason", "fix")]


def _alike(group: Sequence[Finding]) -> Entry:
    first, stake = group[0], sum(finding.bytes or 0 for finding in group)
    cost = f" [{words.size(stake)} at stake, estimated]" if stake else ""
    subjects = list_names([finding.subject for finding in group], _NAMED)
    line = f"{first.severity.value} {first.code} {subjects}: {first.reason}{cost}"
    return line, first.fix, _STYLES[first.severity]


PLUGIN = {
    "verdict": Section(order=10, page=_VERDICT_PAGE),
    "summary": Section(order=20, page=_SUMMARY_PAGE, rows=_summary_rows),
    "fixes": Section(
        order=40,
        title="What to fix",
        shown=lambda report: report.fallbacks or report.findings or report.verdicts,
        page=_FIXES_PAGE,
        blocks=_fixes_blocks,
    ),
}
