"""The float nodes that a limit of accuracy took, and what they cost in the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from qdqtool.core.kinds import LIMIT
from qdqtool.core.report import Report
from qdqtool.core.sensitivity import FloatLimit
from qdqtool.report import words
from qdqtool.report.section import Row, Section

_NAME = "limit"
_PAGE = r"""
{% set limit = report.sections["limit"] %}
<h2 id="limit-{{ run.key }}">Float nodes that the accuracy limit required</h2>
{% for name, text in words.limit_rows(limit) %}<p>{{ name }}: {{ text }}</p>{% endfor %}
{% if limit.path %}
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Float", "Last node", "SQNR", "Accuracy"], ["Float", "SQNR"]) }}
<tbody>{% for entry in limit.path %}
<tr>{{ m.number_cell(entry.kept | length) }}<td>{{ m.goto(run, entry.kept[-1]) if entry.kept else "" }}</td>{{ m.number_cell(entry.sqnr_db, " dB") }}<td>{{ "%.2f -> %.2f %s" | format(entry.task.reference, entry.task.candidate, entry.task.unit) if entry.task else "" }}</td></tr>
{% endfor %}</tbody></table></div>
{% endif %}
{% if limit.alternatives %}
<h3>Formats that were tried for these nodes</h3>
<p>Times are estimated for {{ limit.device }}.</p>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["FP8", "FP16", "Float", "SQNR", "Limit", "Kernels", "Activations", "Engine", "ms (estimated)"], ["FP8", "FP16", "Float", "SQNR", "Kernels", "Activations", "Engine", "ms (estimated)"]) }}
<tbody>{% for one in limit.alternatives %}
<tr>{% for word in ["fp8", "fp16", "float"] %}{{ m.number_cell(one.formats.values() | select("equalto", word) | list | length) }}{% endfor %}{{ m.number_cell(one.sqnr_db, " dB") }}<td>{{ "met, chosen" if one.keeps and one.formats == limit.formats else "met" if one.keeps else "not met" }}</td>{% if one.cost %}{{ m.number_cell(one.cost.kernels) }}{{ m.number_cell(one.cost.activation_bytes) }}{{ m.number_cell(one.cost.engine_bytes) }}<td class="number" data-value="{{ one.ms }}">{{ "%.4f" | format(one.ms) }}</td>{% else %}<td colspan="4">not built</td>{% endif %}</tr>
{% endfor %}</tbody></table></div>
{% endif %}
"""


def _collect(files: Mapping[str, Path]) -> Any:
    path = files.get("limit.json")
    return None if path is None else TypeAdapter(FloatLimit).dump_python(LIMIT.read(path), mode="json")


def _rows(report: Report) -> Iterator[Row]:
    if _NAME in report.sections:
        yield from words.limit_rows(report.sections[_NAME])


PLUGIN = Section(
    order=35,
    title="Limit",
    shown=lambda report: report.sections.get(_NAME),
    page=_PAGE,
    rows=_rows,
    reads=("limit.json",),
    collect=_collect,
)
