"""Parts of the report about the quantized model: its accuracy, the ranges, and the trials of searches.

# accuracy
How far the quantized model is from the float one.

# limit
The float nodes that an accuracy limit needs, and their cost in the engine.

# ranges
Ranges of activations as calibration measured them.

# sensitivity
The accuracy cost of each node.

# tried
The candidates of every search: ranges, a limit of accuracy, fixes, and cures of a sensitivity study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from qdqtool.core.journal import Journal
from qdqtool.core.kinds import CALIBRATION, FIXES, LIMIT, SENSITIVITY
from qdqtool.core.report import Report
from qdqtool.core.sensitivity import FloatLimit
from qdqtool.core.wording import count_noun
from qdqtool.report import words
from qdqtool.report.rows import journal_rows
from qdqtool.report.section import Row, Section

# --- accuracy ----------------------------------------------------------------------------------------------------------


_ACCURACY_PAGE = r"""
{% set comparison = report.comparison %}
<h2 id="accuracy-{{ run.key }}">Accuracy</h2>
<p>{{ comparison.candidate }} against {{ comparison.reference }}, {{ comparison.samples }} samples <span class="source">{{ words.accuracy_caveat(comparison) or "measured" }}</span>.</p>
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
{% if comparison.explanations %}
<h3>Why they differ</h3>
<ul>{% for entry in comparison.explanations %}<li>{{ entry.output }}: {{ words.cause(entry) }}</li>{% endfor %}</ul>
{% endif %}
{% if comparison.parts %}
<h3>Parts of outputs</h3>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Output", "SQNR", "Part"], ["SQNR"]) }}
<tbody>{% for entry in comparison.parts %}<tr><td>{{ entry.output }}</td>{{ m.number_cell(entry.sqnr_db, " dB") }}<td>{{ "chosen from " if entry.chosen }}{{ entry.tensors | join(", ") }}</td></tr>{% endfor %}</tbody>
</table></div>
{% endif %}
{% if comparison.worst %}
<h3>Samples that suffer most</h3>
<p>Those with the most noise come first, relative to the signal of the sample, or to the mean signal if that is larger.</p>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Sample", "Output", "SQNR"], ["SQNR"]) }}
<tbody>{% for entry in comparison.worst %}<tr><td>{{ entry.sample }}</td><td>{{ entry.output }}</td>{{ m.number_cell(entry.sqnr_db, " dB") }}</tr>{% endfor %}</tbody>
</table></div>
{% endif %}
"""


# --- limit -------------------------------------------------------------------------------------------------------------


_LIMIT_PAGE = r"""
{% set limit = report.sections["limit"] %}
<h2 id="limit-{{ run.key }}">Float nodes that the accuracy limit required</h2>
{% for name, text in words.limit_rows(limit) %}<p>{{ name }}{{ ': ' if name }}{{ text }}</p>{% endfor %}
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


def _limit_collect(files: Mapping[str, Path]) -> Any:
    path = files.get("limit.json")
    return None if path is None else TypeAdapter(FloatLimit).dump_python(LIMIT.read(path), mode="json")


def _limit_rows(report: Report) -> Iterator[Row]:
    if "limit" in report.sections:
        yield from words.limit_rows(report.sections["limit"])


# --- ranges ------------------------------------------------------------------------------------------------------------


_RANGES_PAGE = r"""
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


# --- sensitivity -------------------------------------------------------------------------------------------------------


_SENSITIVITY_PAGE = r"""
{% macro tried(cure) %}<td>{{ cure.what }}</td><td>{{ cure_gain(cure) }}{{ "" if cure.helps else ", not significant" }}</td><td>{% for setting in cure.settings %}<code>{{ setting }}</code> {% endfor %}</td>{% endmacro %}
<h2 id="sensitivity-{{ run.key }}">Sensitivity</h2>
<p>{{ words.float_set(report.sensitivity.whole) }} with every node quantized, {{ report.sensitivity.samples }} samples <span class="source">measured</span>. Nodes with fewer samples are estimates.</p>
<div class="wide-table" tabindex="0"><table class="sortable">
{% set has_task = report.sensitivity.nodes | selectattr("task") | list %}
{{ m.head(["Node", "Op", "Share of noise", "SQNR alone", "Gain when float"] + (["Accuracy without it"] if has_task else []) + ["Samples"], ["Share of noise", "SQNR alone", "Gain when float", "Samples"]) }}
<tbody>
{% for row in report.sensitivity.nodes %}
<tr><td>{{ m.goto(run, row.node) }}</td><td class="short">{{ row.op }}</td><td class="number" data-value="{{ row.share }}">{{ "%.1f %%" | format(100 * row.share) }}</td>{{ m.number_cell(row.alone_db, " dB") }}{{ m.number_cell(row.gain_db, " dB") }}{% if has_task %}<td>{{ words.shift(row.task) if row.task else "" }}</td>{% endif %}{{ m.number_cell(row.samples) }}</tr>
{% endfor %}
</tbody></table></div>
{% set advice = noise_advice(report.sensitivity) %}
{% set causes = report.sensitivity.nodes | selectattr("cause") | list %}
{% if advice %}<p><strong>{{ advice }}</strong></p>{% endif %}
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


# --- tried -------------------------------------------------------------------------------------------------------------


_TRIED_PAGE = r"""
<h2 id="tried-{{ run.key }}">What was tried</h2>
<p class="soft">Gains with 95 % intervals over the samples that both candidates ran. Ranges are compared with the best single calibrator or the previous table; float nodes and cures are compared with the quantized network.</p>
<div class="wide-table" tabindex="0"><table class="sortable">
{{ m.head(["Search"] + report.sections["tried"]["head"], ["Samples"]) }}
<tbody>
{% for search in report.sections["tried"]["searches"] %}{% for row in search.rows %}
<tr><td class="short">{{ search.search }}</td>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}</tr>
{% endfor %}{% endfor %}
</tbody></table></div>
"""
_READS: Mapping[str, Callable[[Path], Journal | None]] = {
    "calibration.json": lambda path: CALIBRATION.read(path).journal,
    "limit.json": lambda path: LIMIT.read(path).journal,
    "fixes.json": lambda path: FIXES.read(path).journal,
    "sensitivity.json": lambda path: SENSITIVITY.read(path).journal,
}


def _tried_collect(files: Mapping[str, Path]) -> Any:
    return journal_rows(read(files[name]) for name, read in _READS.items() if name in files)


def _tried_rows(report: Report) -> Iterator[Row]:
    for search in report.sections.get("tried", {}).get("searches", ()):
        kept = [name for name, outcome, *_ in search["rows"] if outcome == "kept"]
        yield (
            "Tried",
            f"{search['search']}: {count_noun(len(search['rows']), 'candidate')}, kept: {', '.join(kept) or 'none'}",
        )


PLUGIN = {
    "accuracy": Section(
        order=90, title="Accuracy", shown=lambda report: report.comparison, page=_ACCURACY_PAGE
    ),
    "limit": Section(
        order=35,
        title="Limit",
        shown=lambda report: report.sections.get("limit"),
        page=_LIMIT_PAGE,
        rows=_limit_rows,
        reads=("limit.json",),
        collect=_limit_collect,
    ),
    "ranges": Section(order=110, title="Ranges", shown=lambda report: report.ranges, page=_RANGES_PAGE),
    "sensitivity": Section(
        order=100, title="Sensitivity", shown=lambda report: report.sensitivity, page=_SENSITIVITY_PAGE
    ),
    "tried": Section(
        order=105,
        title="What was tried",
        shown=lambda report: report.sections.get("tried"),
        page=_TRIED_PAGE,
        rows=_tried_rows,
        reads=tuple(_READS),
        collect=_tried_collect,
    ),
}
