"""What each node costs in accuracy."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
<h2 id="sensitivity-{{ run.key }}">Sensitivity</h2>
<p>{{ words.float_set(report.sensitivity.whole) }} with every node quantized, {{ report.sensitivity.samples }} samples <span class="source">measured</span>. Nodes with fewer samples are estimates.</p>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Node", "Op", "Share of noise", "SQNR alone", "Gain when float", "Accuracy without it", "Samples"], ["Share of noise", "SQNR alone", "Gain when float", "Samples"]) }}
<tbody>
{% for row in report.sensitivity.nodes %}
<tr><td>{{ m.goto(run, row.node) }}</td><td class="short">{{ row.op | clean }}</td><td class="number" data-value="{{ row.share }}">{{ "%.1f %%" | format(100 * row.share) }}</td>{{ m.number_cell(row.alone_db, " dB") }}{{ m.number_cell(row.gain_db, " dB") }}<td>{{ words.shift(row.task) if row.task else "" }}</td>{{ m.number_cell(row.samples) }}</tr>
{% endfor %}
</tbody></table></div>
"""

PLUGIN = Section(order=100, title="Sensitivity", shown=lambda report: report.sensitivity, page=_PAGE)
