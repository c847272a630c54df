"""The fate of every Q and DQ node in the engine."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
<h2 id="ledger-{{ run.key }}">Q and DQ nodes</h2>
{{ m.filter("ledger-table-" ~ run.key, "nodes") }}
<div class="wide-table" tabindex="0"><table class="sortable" id="ledger-table-{{ run.key }}">
{{ m.head(["Node", "Kind", "Result", "Into", "Log lines"]) }}
<tbody>
{% for row in report.ledger %}
<tr><td>{{ row.node }}</td><td>{{ row.kind }}</td><td>{{ row.end.value }}</td><td>{{ m.goto(run, row.into) }}</td><td>{{ row.lines | join(", ") }}</td></tr>
{% endfor %}
</tbody></table></div>
"""

PLUGIN = Section(order=120, title="Q and DQ nodes", shown=lambda report: report.ledger, page=_PAGE)
