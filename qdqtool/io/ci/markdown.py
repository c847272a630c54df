"""Markdown for pull-request comments and job summaries."""

from __future__ import annotations

from qdqtool.io.ci import CiReport, CiResult
from qdqtool.io.escaping import markdown


def write(report: CiReport) -> str:
    """Render a line of figures, then a table of findings; notes and waived findings are collapsed."""
    lines = [f"### qdqtool {report.tool} of {markdown(report.source)}", "", markdown(report.headline), ""]
    open_results = [result for result in report.results if not result.waiver]
    grave = [result for result in open_results if result.level != "info"]
    lines += _table(grave) if grave else ["No warnings."]
    folds = {
        "notes": [result for result in open_results if result.level == "info"],
        "waived findings": [result for result in report.results if result.waiver],
    }
    for title, results in folds.items():
        if results:
            lines += ["", f"<details><summary>{len(results)} {title}</summary>", ""]
            lines += [*_table(results), "", "</details>"]
    lines += ["", *(f"> {markdown(note)}" for note in report.notes)] if report.notes else []
    return "\n".join(lines) + "\n"


def _table(results: list[CiResult]) -> list[str]:
    rows = [
        f"| {result.level} | {markdown(result.code)} | {markdown(result.subject)} | {markdown(result.reason)} "
        f"| {markdown(result.waiver or result.fix)} |"
        for result in results
    ]
    return ["| severity | code | subject | reason | fix |", "|---|---|---|---|---|", *rows]
