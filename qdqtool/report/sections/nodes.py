"""Every compute node: what it runs in, in which layers, and why."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
<h2 id="nodes-{{ run.key }}">Compute nodes</h2>
{{ m.filter("node-table-" ~ run.key, "nodes") }}
<div class="wide-table" tabindex="0"><table class="sortable" id="node-table-{{ run.key }}">
{{ m.head(["Node", "Op", "Verdict", "Precision", "Requested", "Engine layers", "Reason", "Fix"]) }}
<tbody>
{% for verdict in report.verdicts %}
<tr><td>{{ m.goto(run, verdict.node) }}</td><td class="short">{{ verdict.op }}</td><td class="short">{{ verdict.verdict.value }}</td><td class="short"><span class="dot-of {{ swatch(verdict.precision) }}"></span>{{ verdict.precision.value }}</td><td>{{ "yes" if verdict.requested else "no" }}</td><td>{{ verdict.layers | join(", ") }}</td><td>{{ verdict.reason | prose }}</td><td>{{ verdict.fix | prose }}</td></tr>
{% endfor %}
</tbody></table></div>
"""

PLUGIN = Section(order=70, title="Compute nodes", shown=lambda report: report.verdicts, page=_PAGE)
