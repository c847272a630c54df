"""The report as one self-contained page: no network, opens from disk, made from the report and nothing else."""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined

from qdqtool.core.findings import Severity
from qdqtool.core.report import Report
from qdqtool.report import words
from qdqtool.report.assemble import runs_int8


def render(report: Report) -> str:
    """The HTML text of the page; everything that comes from a model or a dump is escaped."""
    environment = Environment(
        loader=PackageLoader("qdqtool.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html")
    return template.render(
        report=report, summary=report.summary, words=words, runs_int8=runs_int8, severities=tuple(Severity)
    )
