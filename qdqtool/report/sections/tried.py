"""The candidates of every search: ranges, a limit of accuracy, fixes, and cures of a sensitivity study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qdqtool.core.journal import HEAD, Journal
from qdqtool.core.kinds import CALIBRATION, FIXES, LIMIT, SENSITIVITY
from qdqtool.core.report import Report
from qdqtool.core.wording import counted
from qdqtool.report.section import Row, Section

_NAME = "tried"
_PAGE = r"""
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


def _collect(files: Mapping[str, Path]) -> Any:
    journals = [read(files[name]) for name, read in _READS.items() if name in files]
    found = [one for one in journals if one is not None and one.trials]
    if not found:
        return None
    searches = [
        {"search": one.search, "objective": one.objective, "rows": [list(row) for row in one.rows]}
        for one in found
    ]
    return {"head": [name.capitalize() for name in HEAD], "searches": searches}


def _rows(report: Report) -> Iterator[Row]:
    for search in report.sections.get(_NAME, {}).get("searches", ()):
        kept = [what for what, outcome, *_ in search["rows"] if outcome == "kept"]
        yield (
            "Tried",
            f"{search['search']}: {counted(len(search['rows']), 'candidate')}, kept: {', '.join(kept) or 'none'}",
        )


PLUGIN = Section(
    order=105,
    title="What was tried",
    shown=lambda report: report.sections.get(_NAME),
    page=_PAGE,
    rows=_rows,
    reads=tuple(_READS),
    collect=_collect,
)
