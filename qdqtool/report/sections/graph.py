"""The engine as a drawing that can be searched and stepped through."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
{% if report.layers %}
<h2 id="graph-{{ run.key }}">Engine graph</h2>
{% endif %}
{% if run.is_too_large %}
<p>The engine has {{ run.network.layers | length }} layers: too many to draw. The table below lists all layers.</p>
{% elif run.network.layers and not run.graph %}
<p>The layer information names the layers but not their tensors, so the graph cannot be drawn. The table below lists all layers.</p>
{% elif run.graph %}
<div class="bar-of-tools">
<label>Search <input type="search" class="find" placeholder="layer, ONNX node, tensor, kernel"></label>
<output class="count soft" aria-live="polite"></output>
<button type="button" data-zoom="1.25" aria-label="Zoom in">+</button>
<button type="button" data-zoom="0.8" aria-label="Zoom out">&minus;</button>
<button type="button" data-zoom="width">Width</button>
<button type="button" data-zoom="all">All</button>
</div>
<p class="soft">Every box is a kernel of the engine, top to bottom as data flows; choose one to see its parts. Drag to pan, Ctrl and wheel to zoom. Keys: arrows step through layers, + and - zoom, 0 shows all (a long engine in columns, read downwards), / searches, Enter goes to the next match.</p>
<div class="legend">{{ m.keys(run.network.layers | map(attribute="precision")) }}<span><i class="shape computes"></i>convolution, matrix product or attention</span><span><i class="shape"></i>other work</span><span><i class="shape converts"></i>only quantizes, casts or reformats</span><span><i class="shape port"></i>input or output of the engine</span><span><i class="shape badge">1</i>findings</span></div>
<div class="explorer">
<div class="stage" tabindex="0" role="application" aria-label="Engine graph: arrow keys step through its layers">{{ run.graph }}</div>
<svg class="overview" viewBox="0 0 10 1000" preserveAspectRatio="none" aria-hidden="true">
{% for layer in run.network.layers %}<rect class="{{ swatch(layer.precision) }}" x="0" y="{{ "%.2f" | format(loop.index0 * 1000 / loop.length) }}" width="10" height="{{ "%.2f" | format(1000 / loop.length) }}" fill="var(--c)"/>{% endfor %}
{% for place, severity in run.ticks %}<rect class="tick {{ severity }}" x="5" y="{{ "%.2f" | format(place * 1000 / (run.network.layers | length)) }}" width="5" height="3"/>{% endfor %}
<rect class="window" x="0" y="0" width="10" height="1000"/></svg>
<div class="details" aria-live="polite"><p class="soft">Choose a layer to see its ONNX nodes, tensors, formats, bytes and time, the Q and DQ nodes that were fused into it, and possible fixes.</p><p class="soft">The strip beside the graph shows all layers from the first to the last; warnings are marked on it.</p></div>
</div>
<script type="application/json">{{ run.details | tojson }}</script>
{% endif %}
"""

PLUGIN = Section(order=50, title="Engine graph", shown=lambda report: report.layers, page=_PAGE)
