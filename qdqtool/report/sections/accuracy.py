"""How far the quantized model is from the float one."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
{% set comparison = report.comparison %}
<h2 id="accuracy-{{ run.key }}">Accuracy</h2>
<p>{{ comparison.reference }} against {{ comparison.candidate }}, {{ comparison.samples }} samples <span class="source">{{ words.accuracy_caveat(comparison) or "measured" }}</span>.</p>
{% for title, entries in [("Outputs", comparison.outputs), ("Tensors inside the model", comparison.tensors)] %}
{% if entries %}
<h3>{{ title }}</h3>
<div class="wide-table" tabindex="0"><table class="sortable">
{% set metrics = entries[0].measures | map(attribute="metric") | map("metric_name") | list %}
{{ m.head(["Tensor"] + metrics, metrics) }}
<tbody>
{% for entry in entries %}
<tr><td>{{ entry.output }}</td>{% for measure in entry.measures %}<td class="number" data-value="{{ measure.value if measure.value is not none else "" }}">{{ words.value(measure) }}</td>{% endfor %}</tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% endfor %}
{% if comparison.parts %}
<h3>Parts of outputs</h3>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Output", "SQNR", "Part"], ["SQNR"]) }}
<tbody>{% for entry in comparison.parts %}<tr><td>{{ entry.output }}</td>{{ m.number_cell(entry.sqnr_db, " dB") }}<td>{{ "chosen from " if entry.chosen }}{{ entry.tensors | join(", ") }}</td></tr>{% endfor %}</tbody>
</table></div>
{% endif %}
{% if comparison.worst %}
<h3>Samples that suffer most</h3>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Sample", "Output", "SQNR"], ["SQNR"]) }}
<tbody>{% for entry in comparison.worst %}<tr><td>{{ entry.sample }}</td><td>{{ entry.output }}</td>{{ m.number_cell(entry.sqnr_db, " dB") }}</tr>{% endfor %}</tbody>
</table></div>
{% endif %}
"""


PLUGIN = Section(order=90, title="Accuracy", shown=lambda report: report.comparison, page=_PAGE)
