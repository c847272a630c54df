"""Show the report of a run, and write it as a page or as pictures.

Reads report.json of a run folder; where it is missing, the report is put together from the artefacts of the steps that
ran. Instead of a folder, layer information of any engine will do (--exportLayerInfo, a layer dump, a build log), with
its times from --profile. The page is one file that needs no network; with --against it shows two runs side by side.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qdqtool.core.report import Report


def report(
    run: Annotated[Path, typer.Argument(help="Run folder, or a file with an engine's layer information.")],
    html: Annotated[
        bool, typer.Option("--html", help="Write the page report.html into the run folder.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the page to this file.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Second run, for a page with both side by side.")
    ] = None,
    profile: Annotated[Path | None, typer.Option(help="Layer times of the engine: --exportProfile.")] = None,
    charts: Annotated[
        Path | None, typer.Option(help="Write the charts as pictures into this folder.")
    ] = None,
    pictures: Annotated[str, typer.Option("--format", help="Form of the pictures: svg or png.")] = "svg",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of the summary.")
    ] = False,
) -> None:
    """Show the report of a run, and write it as a page or as pictures."""
    from qdqtool.cli.screen import stderr, stdout
    from qdqtool.core.files import write_text
    from qdqtool.core.kinds import REPORT
    from qdqtool.report import terminal
    from qdqtool.report.figures import write_figures
    from qdqtool.report.html import render

    found = _open(run, profile)
    if html or out is not None:
        page = out or (run if run.is_dir() else run.parent) / "report.html"
        write_text(page, render(found, None if against is None else _open(against, None)))
        stderr().print(f"wrote {page}", markup=False, highlight=False)
    if charts is not None:
        for path in write_figures(found, charts, pictures):
            stderr().print(f"wrote {path}", markup=False, highlight=False)
    if as_json:
        sys.stdout.write(REPORT.dump(found))
    else:
        terminal.render(found, stdout())


def _open(run: Path, profile: Path | None) -> Report:
    """The report of a run folder, or of an engine alone."""
    from qdqtool.engine.profiles.read import read_profile
    from qdqtool.engine.read import read
    from qdqtool.engine.view import view
    from qdqtool.report.assemble import Material, assemble
    from qdqtool.report.folder import read_report
    from qdqtool.report.layers import timed

    times = None if profile is None else read_profile(profile)
    if run.is_file():
        engine = read(run)
        return assemble(Material(model_name=run.name, engine=engine, view=view(engine, profile=times)))
    found = read_report(run)
    return found if times is None else timed(found, view(read(run / "layers.json"), profile=times))


PLUGIN = report
