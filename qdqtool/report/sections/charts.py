"""Charts of precision, time, bytes, roofline, accuracy and ranges."""

from __future__ import annotations

from qdqtool.report.figures import figures
from qdqtool.report.section import Section

_PAGE = r"""
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

PLUGIN = Section(order=60, title="Charts", shown=figures, page=_PAGE)
