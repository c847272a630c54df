"""Show the report of a run folder, and write it as a page.

Reads report.json of the folder; where it is missing, the report is put together from the artefacts of the steps that
ran. The page is one file that needs no network.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Run folder, made by `qdqtool run` or by single steps.")],
    html: Annotated[bool, typer.Option("--html", help="Write the page RUN/report.html.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the page here instead.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of the summary.")
    ] = False,
) -> None:
    """Show the report of a run folder, and write it as a page."""
    from qdqtool.cli.screen import stderr, stdout
    from qdqtool.core.files import write_text
    from qdqtool.core.kinds import REPORT
    from qdqtool.report import terminal
    from qdqtool.report.folder import read_report
    from qdqtool.report.html import render

    found = read_report(run)
    if html or out is not None:
        page = out or run / "report.html"
        write_text(page, render(found))
        stderr().print(f"wrote {page}", markup=False, highlight=False)
    if as_json:
        sys.stdout.write(REPORT.dump(found))
    else:
        terminal.render(found, stdout())


PLUGIN = report
