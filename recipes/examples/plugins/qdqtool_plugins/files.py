"""A part of the report: how large the models and the engine of the run are."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from qdqtool.core.report import Report
from qdqtool.report.section import Row, Section

READS = ("model.prepared.onnx", "model.qdq.onnx", "engine.plan")
PAGE = """
<h2 id="files-{{ run.key }}">Files</h2>
<ul>{% for name, size in report.sections["files"].items() %}<li>{{ name }}: {{ size }} bytes</li>{% endfor %}</ul>
"""


def collect(found: Mapping[str, Path]) -> dict[str, int] | None:
    """Bytes by name of file; what is returned stands in report.json, under `sections`."""
    return {name: path.stat().st_size for name, path in found.items()} or None


def rows(report: Report) -> Iterator[Row]:
    """A line of the summary on the terminal."""
    if sizes := report.sections.get("files"):
        yield "Files", f"{sum(sizes.values()) / 1024:.0f} KiB in {len(sizes)} files  [measured]"


PLUGIN = Section(
    order=95,
    title="Files",
    shown=lambda report: report.sections.get("files"),
    page=PAGE,
    rows=rows,
    reads=READS,
    collect=collect,
)
