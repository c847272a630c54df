"""The accuracy cost of each node."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
{% macro tried(cure) %}<td>{{ cure.what }}</td><td>{{ cure_gain(cure) }}{{ "" if cure.helps else ", not significant" }}</td><td>{% for setting in cure.settings %}<code>{{ setting }}</code> {% endfor %}</td>{% endmacro %}
<h2 id="sensitivity-{{ run.key }}">Sensitivity</h2>
<p>{{ words.float_set(report.sensitivity.whole) }} with every node quantized, {{ report.sensitivity.samples }} samples <span class="source">measured</span>. Nodes with fewer samples are estimates.</p>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Node", "Op", "Share of noise", "SQNR alone", "Gain when float", "Accuracy without it", "Samples"], ["Share of noise", "SQNR alone", "Gain when float", "Samples"]) }}
<tbody>
{% for row in report.sensitivity.nodes %}
<tr><td>{{ m.goto(run, row.node) }}</td><td class="short">{{ row.op }}</td><td class="number" data-value="{{ row.share }}">{{ "%.1f %%" | format(100 * row.share) }}</td>{{ m.number_cell(row.alone_db, " dB") }}{{ m.number_cell(row.gain_db, " dB") }}<td>{{ words.shift(row.task) if row.task else "" }}</td>{{ m.number_cell(row.samples) }}</tr>
{% endfor %}
</tbody></table></div>
{% set causes = report.sensitivity.nodes | selectattr("cause") | list %}
{% if causes %}
<p>Why the noisiest nodes are noisy, and what the outputs gained when a change was tried <span class="source">measured</span>, with 95 % intervals over {{ causes[0].cause.samples }} samples or all of them:</p>
<div class="wide-table" tabindex="0"><table>
<thead><tr>{% for name in ["Node", "Cause", "What was tried", "Gain", "Setting"] %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in causes %}
{% for cure in row.cures or [none] %}
<tr>{% if loop.first %}<td rowspan="{{ loop.length }}">{{ m.goto(run, row.node) }}</td><td rowspan="{{ loop.length }}">{{ noise_cause(row.cause) }}</td>{% endif %}{% if cure %}{{ tried(cure) }}{% else %}<td></td><td></td><td></td>{% endif %}</tr>
{% endfor %}
{% endfor %}
{% for cure in report.sensitivity.cures %}
<tr>{% if loop.first %}<td rowspan="{{ loop.length }}" colspan="2">the whole network</td>{% endif %}{{ tried(cure) }}</tr>
{% endfor %}
</tbody></table></div>
{% endif %}
"""

PLUGIN = Section(order=100, title="Sensitivity", shown=lambda report: report.sensitivity, page=_PAGE)
