"""Facts from the build log: the passes of the optimizer, and the precision of each node with the lines that say so.

Models without Q and DQ nodes have it too: then the engine's own layers are judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qdqtool.core.kinds import LOG
from qdqtool.report.rows import Rows, log_rows
from qdqtool.report.section import Section

_PAGE = r"""
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


PLUGIN = Section(
    order=125,
    title="Build log",
    shown=lambda report: any(report.sections.get("log", {}).values()),
    page=_PAGE,
    reads=("log.json",),
    collect=_collect,
)
