"""Every compute node in graph order, coloured by what it runs in."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
<h2>Precision map</h2>
<p class="soft">Every compute node in graph order; choose one to see it in the engine.</p>
<ul class="map">
{% for verdict in report.verdicts %}
<li><button type="button" class="{{ swatch(verdict.precision) }}" title="{{ verdict.node }} ({{ verdict.op }}): {{ verdict.verdict.value }}{% if verdict.reason %} - {{ verdict.reason }}{% endif %}" aria-label="{{ verdict.node }}: {{ verdict.verdict.value }}"{% if verdict.node in run.layer_of %} data-goto="{{ run.layer_of[verdict.node] }}"{% endif %}>{{ "" if runs_as_asked(verdict) else "!" }}</button></li>
{% endfor %}
</ul>
{{ m.legend(report.verdicts | map(attribute="precision")) }}
"""

PLUGIN = Section(order=30, shown=lambda report: report.verdicts, page=_PAGE)
