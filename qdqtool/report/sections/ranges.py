"""Ranges of activations as calibration measured them."""

from __future__ import annotations

from qdqtool.report.section import Section

_PAGE = r"""
<h2 id="ranges-{{ run.key }}">Ranges of activations</h2>
<p class="soft">Measured in calibration.</p>
{{ m.filter("range-table-" ~ run.key, "tensors") }}
<div class="wide-table" tabindex="0"><table class="sortable" id="range-table-{{ run.key }}">
{{ m.head(["Tensor", "Largest kept", "Smallest seen", "Largest seen", "Calibrator", "Note"], ["Largest kept", "Smallest seen", "Largest seen"]) }}
<tbody>
{% for row in report.ranges %}
<tr><td>{{ row.tensor }}</td>{{ m.number_cell(row.amax) }}{{ m.number_cell(row.low) }}{{ m.number_cell(row.high) }}<td>{{ row.method }}</td><td>{{ row.note }}</td></tr>
{% endfor %}
</tbody></table></div>
"""

PLUGIN = Section(order=110, title="Ranges", shown=lambda report: report.ranges, page=_PAGE)
