"""Parts of the report about the engine: drawing, charts, layers, nodes, and the log of the build.

# graph
The engine as a drawing that can be searched and stepped through.

# charts
Charts of precision, time, bytes, roofline, accuracy and ranges.

# precision_map
Every compute node in graph order, coloured by its precision.

# nodes
Every compute node: its precision, its layers, and the reason.

# layers
Every engine layer with its types, times, bytes and MACs.

# ledger
How every Q and DQ node ended in the engine.

# log
Facts from the build log: the passes of the optimizer, and the precision of each node with the lines that say so.

For models without Q and DQ nodes, the section shows the precision of the engine's layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qdqtool.core.kinds import LOG
from qdqtool.report.figures import figures
from qdqtool.report.rows import Rows, log_rows
from qdqtool.report.section import Section

# --- graph -------------------------------------------------------------------------------------------------------------


_GRAPH_PAGE = r"""
{% if report.layers %}
<h2 id="graph-{{ run.key }}">Engine graph</h2>
{% endif %}
{% if run.is_too_large %}
<p>The engine has {{ run.network.layers | length }} layers: too many to draw. The table below lists all layers.</p>
{% elif run.network.layers and not run.graph %}
<p>The layer information names the layers but not their tensors, so the graph cannot be drawn. The table below lists all layers.</p>
{% elif run.graph %}
{{ m.explorer(run, "Every box is a kernel of the engine, top to bottom as data flows; choose one to see its parts.", "layer", "layer, ONNX node, tensor, kernel") }}
{% endif %}
"""


# --- charts ------------------------------------------------------------------------------------------------------------


_CHARTS_PAGE = r"""
{% if run.figures %}
<h2 id="charts-{{ run.key }}">Charts</h2>
<div class="figures">
{% for figure, drawings in run.figures %}
<figure tabindex="0" id="chart-{{ figure.name }}-{{ run.key }}"{% if drawings | length > 1 %} class="wide"{% endif %}>
<h3>{{ figure.title }} <span class="source">{{ figure.source }}</span></h3>
{% if drawings | length > 1 %}<div class="smalls">{% for drawing in drawings %}{{ drawing }}{% endfor %}</div>{% else %}{{ drawings[0] }}{% endif %}
<figcaption>{{ figure.caption }}</figcaption>
</figure>
{% endfor %}
</div>
{% endif %}
"""


# --- precision map -----------------------------------------------------------------------------------------------------


_PRECISION_MAP_PAGE = r"""
<h2>Precision map</h2>
<p class="soft">Every compute node in graph order; choose one to see it in the engine.</p>
<ul class="map">
{% for verdict in report.verdicts %}
<li><button type="button" class="{{ swatch(verdict.precision) }}" title="{{ verdict.node }} ({{ verdict.op }}): {{ verdict.verdict.value }}{% if verdict.reason %} - {{ verdict.reason }}{% endif %}" aria-label="{{ verdict.node }}: {{ verdict.verdict.value }}"{% if verdict.node in run.layer_of %} data-goto="{{ run.layer_of[verdict.node] }}"{% endif %}>{{ "" if runs_as_asked(verdict) else "!" }}</button></li>
{% endfor %}
</ul>
{{ m.legend(report.verdicts | map(attribute="precision")) }}
"""


# --- nodes -------------------------------------------------------------------------------------------------------------


_NODES_PAGE = r"""
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


# --- layers ------------------------------------------------------------------------------------------------------------


_LAYERS_PAGE = r"""
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


# --- ledger ------------------------------------------------------------------------------------------------------------


_LEDGER_PAGE = r"""
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


# --- log ---------------------------------------------------------------------------------------------------------------


_LOG_PAGE = r"""
{% set log = report.sections["log"] %}
<h2 id="log-{{ run.key }}">Build log</h2>
{% if log.nodes %}
{{ m.filter("log-nodes-" ~ run.key, "nodes") }}
<div class="wide-table" tabindex="0"><table class="sortable" id="log-nodes-{{ run.key }}">
{{ m.head(["Node", "Op", "Precision", "Why", "Log lines"]) }}
<tbody>
{% for node, op, precision, why, lines in log.nodes %}
<tr><td>{{ node }}</td><td class="short">{{ op }}</td><td class="short">{{ precision }}</td><td>{{ why }}</td><td>{{ lines | join(", ") }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
{% if log.passes %}
<h3>Passes of the optimizer</h3>
<div class="wide-table" tabindex="0"><table class="sortable" id="log-passes-{{ run.key }}">
{{ m.head(["Pass", "Attempts", "Effects", "First line"]) }}
<tbody>
{% for name, attempts, effects, line in log.passes %}
<tr><td>{{ name }}</td><td>{{ attempts }}</td><td>{{ effects }}</td><td>{{ line }}</td></tr>
{% endfor %}
</tbody></table></div>
{% endif %}
"""


def _collect(files: Mapping[str, Path]) -> Rows | None:
    runs = LOG.read(files["log.json"]).runs if "log.json" in files else ()
    return log_rows(runs[-1]) if runs else None


PLUGIN = {
    "graph": Section(order=50, title="Engine graph", shown=lambda report: report.layers, page=_GRAPH_PAGE),
    "charts": Section(order=60, title="Charts", shown=figures, page=_CHARTS_PAGE),
    "precision_map": Section(order=30, shown=lambda report: report.verdicts, page=_PRECISION_MAP_PAGE),
    "nodes": Section(order=70, title="Compute nodes", shown=lambda report: report.verdicts, page=_NODES_PAGE),
    "layers": Section(order=80, title="Engine layers", shown=lambda report: report.layers, page=_LAYERS_PAGE),
    "ledger": Section(
        order=120, title="Q and DQ nodes", shown=lambda report: report.ledger, page=_LEDGER_PAGE
    ),
    "log": Section(
        order=125,
        title="Build log",
        shown=lambda report: any(report.sections.get("log", {}).values()),
        page=_LOG_PAGE,
        reads=("log.json",),
        collect=_collect,
    ),
}
