"""The headline figures, and what every step wants a person to know."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from qdqtool.core.advice import settings_in
from qdqtool.core.findings import Finding
from qdqtool.core.report import Report, Summary
from qdqtool.report import words
from qdqtool.report.section import Row, Section
from qdqtool.report.words import accuracy_rows

_KEPT_FLOAT = "float_shortcut"
"""The check for Adds that placement keeps float although INT8 copies of their inputs exist."""
_PAGE = r"""
{% set summary = report.summary %}
<div class="tiles" id="summary-{{ run.key }}">
{% if report.comparison %}
{% set caveat = words.accuracy_caveat(report.comparison) %}
{% for entry in report.comparison.task %}
{{ m.tile("Accuracy, " ~ (entry.metric | metric_name), "%.1f → %.1f %s" | format(entry.reference, entry.candidate, entry.unit), caveat or "measured", words.spread(entry, meaningful=not caveat)) }}
{% endfor %}
{% for output in report.comparison.outputs[:3] %}
{{ m.tile("Output " ~ output.output, words.headline(output), caveat or "measured", words.rest(output)) }}
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


def _rows(report: Report) -> Iterator[Row]:
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
    sources = dict.fromkeys(entry.source for entry in summary.assumptions)
    for number, source in enumerate(sources):
        values = ", ".join(f"{one.what} {one.value}" for one in summary.assumptions if one.source == source)
        yield "" if number else "Inputs", f"{values}  [{source}]"


def _activations(summary: Summary) -> str:
    dumped, fused = summary.activation_bytes_dumped, summary.activation_bytes_fused
    if dumped is None:
        return "bytes unknown: a shape or a type is dynamic or not understood"
    return f"{words.size(dumped)} [recorded], {words.size(fused)} with fused epilogues [estimated]"


def _float_copies(finding: Finding) -> str:
    """Return the bytes of the float copies, and the setting that saves them if there is one. The finding has the full text."""
    settings = " ".join(f"--set {shlex.quote(text)}" for text in settings_in(finding.fix))
    what = finding.reason.partition(":")[0]
    way = f"; without: {settings}" if settings else ""
    return f"{what}: {words.size(finding.bytes or 0)} more [estimated]{way}"


PLUGIN = Section(order=20, page=_PAGE, rows=_rows)
