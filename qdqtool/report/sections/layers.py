"""Every engine layer with its types, times, bytes and MACs."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
<h2 id="layers-{{ run.key }}">Engine layers</h2>
<p class="soft">Types and bytes are recorded in the layer information, MACs follow from its shapes; times are measured.</p>
{{ m.filter("layer-table-" ~ run.key, "layers") }}
<div class="wide-table" tabindex="0"><table class="sortable" id="layer-table-{{ run.key }}">
{{ m.head(["#", "Layer", "Type", "Role", "Precision", "ms", "Activations", "Weights", "MACs", "Kernel", "ONNX nodes"], ["#", "ms", "Activations", "Weights", "MACs"]) }}
<tbody>
{% for layer in report.layers %}
<tr><td class="number" data-value="{{ loop.index0 }}">{{ loop.index0 }}</td><td>{% if run.graph %}<a href="#graph-{{ run.key }}" data-goto="{{ loop.index0 }}">{{ layer.name }}</a>{% else %}{{ layer.name }}{% endif %}</td><td class="short">{{ layer.kind }}</td><td class="short">{{ layer.role.value }}</td><td class="short"><span class="dot-of {{ swatch(layer.precision) }}"></span>{{ layer.precision.value }}</td>{{ m.number_cell(layer.ms) }}{{ m.size_cell(layer.bytes) }}<td class="number" data-value="{{ layer.weight_bytes or "" }}">{{ words.size(layer.weight_bytes) if layer.constants else "" }}</td><td class="number" data-value="{{ layer.macs if layer.macs is not none else "" }}">{{ words.large(layer.macs) }}</td><td>{{ layer.tactic }}</td><td>{{ layer.onnx_nodes | join(", ") }}</td></tr>
{% endfor %}
</tbody></table></div>
"""

PLUGIN = Section(order=80, title="Engine layers", shown=lambda report: report.layers, page=_PAGE)
