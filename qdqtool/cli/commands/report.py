"""Show the report of a run, or write it as an HTML page or as pictures.

Reads report.json of a run folder; if it is missing, the report is assembled from the files of the finished steps.
Instead of a folder you can pass layer information of any engine (--exportLayerInfo, a layer dump, a build log): it is
audited, with times from --profile and the optimizer's steps from --log. The page is one file that needs no network;
with --against it shows two runs side by side, with the causes of their differences.

    qdqtool report runs/digits
    qdqtool report runs/digits --journal
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qdqtool.core.difference import EngineDiff
    from qdqtool.core.explore import Profile
    from qdqtool.core.report import Report
    from qdqtool.engine.diff import Explored


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    """A report that was read, and its engine if the layers are known."""

    report: Report
    explored: Explored | None = None


def report(
    run: Annotated[Path, typer.Argument(help="Run folder, or file with the layer information of an engine.")],
    html: Annotated[
        bool,
        typer.Option(
            "--html",
            help="Write the page report.html into the run folder, or NAME.report.html beside a file.",
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the page to this file.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="Second run: the page shows both side by side.")
    ] = None,
    against_profile: Annotated[Path | None, typer.Option(help="Layer times of the second engine.")] = None,
    profile: Annotated[
        Path | None,
        typer.Option("--profile", "-p", help="Layer times of the engine: file of trtexec --exportProfile."),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(help="Verbose log of the build, for an engine without a run folder."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="GPU whose limits are drawn: a name, or the metadata JSON of a trtexec run.")
    ] = "",
    charts: Annotated[
        Path | None, typer.Option(help="Write the charts as pictures into this folder.")
    ] = None,
    pictures: Annotated[str, typer.Option("--format", help="Format of the pictures: svg or png.")] = "svg",
    journal: Annotated[
        bool,
        typer.Option(
            "--journal",
            help="Print all candidates that the searches of the run tried, instead of the summary.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON instead of the summary.")
    ] = False,
) -> None:
    """Show the report of a run, or write it as an HTML page or as pictures."""
    from qdqtool.cli.screen import stderr, stdout
    from qdqtool.core.kinds import REPORT
    from qdqtool.io.files import write_text
    from qdqtool.report import terminal
    from qdqtool.report.figures import write_figures
    from qdqtool.report.html import render

    opened = _open(run, profile, log)
    shown = _under(opened, device) if device else opened.report
    if html or out is not None:
        # Beside layers.json in a run folder, report.html is the page of the whole run.
        page = out or (run / "report.html" if run.is_dir() else run.with_name(f"{run.stem}.report.html"))
        rival = None if against is None else _open(against, against_profile, None)
        diff = _difference(opened, rival) if rival else None
        names = None
        if rival and against and shown.summary.model == rival.report.summary.model:
            names = (str(run), str(against))
        write_text(page, render(shown, rival.report if rival else None, diff, names))
        stderr().print(f"wrote {page}")
    if charts is not None:
        for path in write_figures(shown, charts, pictures):
            stderr().print(f"wrote {path}")
    if as_json:
        sys.stdout.write(REPORT.dump(shown))
    elif journal:
        _show_journals(shown)
    else:
        terminal.render(shown, stdout(), run=str(run))


def _show_journals(report: Report) -> None:
    from qdqtool.cli.screen import show_journal, stdout

    searches = (report.sections.get("tried") or {}).get("searches", ())
    for search in searches:
        show_journal(search["search"], search["objective"], search["rows"])
    if not searches:
        stdout().print("nothing was tried")


def _under(opened: Opened, device: str) -> Report:
    """Return the report with the roofline of a GPU, and which limit each layer reaches first.

    Raises:
        UsageError: no such GPU, or the layers of the engine are not there.
    """
    from qdqtool.engine.roofline import find_device
    from qdqtool.engine.view import find_bound
    from qdqtool.errors import UsageError

    if opened.explored is None:
        raise UsageError(
            "--device needs the layers of an engine, and this run has none",
            fix="remove --device",
            where="--device",
        )
    gpu = find_device(device)
    bounds = [find_bound(layer, gpu) or "" for layer in opened.explored.view.layers]
    layers = tuple(replace(row, bound=words) for row, words in zip(opened.report.layers, bounds, strict=True))
    return replace(opened.report, layers=layers, device=gpu)


def _difference(first: Opened, second: Opened) -> EngineDiff | None:
    """Compare a second engine with the report's engine; None if the layers of one are unknown."""
    from qdqtool.engine.diff import compare

    if first.explored is None or second.explored is None:
        return None
    return compare(replace(first.explored, name="run A"), replace(second.explored, name="run B"))


def _open(run: Path, profile: Path | None, log: Path | None) -> Opened:
    """Open the report of a run folder, or make one for a single engine."""
    from qdqtool.engine.diff import Explored
    from qdqtool.engine.layer_info import read
    from qdqtool.engine.profile_forms import read_profile
    from qdqtool.engine.view import view
    from qdqtool.pipeline.report import read_report
    from qdqtool.report.rows import add_times

    times = None if profile is None else read_profile(profile)
    if run.is_file():
        return _alone(run, times, log)
    stored = read_report(run)
    layers = run / "layers.json"
    if not layers.is_file():
        return Opened(report=stored)
    engine = read(layers)
    if len(engine.layers) != len(stored.layers):
        return Opened(report=stored)
    layer_views = view(engine, profile=times)
    return Opened(
        report=stored if times is None else add_times(stored, layer_views),
        explored=Explored(name=stored.summary.model, engine=engine, view=layer_views),
    )


def _alone(file: Path, times: Profile | None, log: Path | None) -> Opened:
    """Make a report from layer information only, with the build log if there is one."""
    from qdqtool.auditing.context import stage
    from qdqtool.auditing.full_audit import examine
    from qdqtool.core.buildlog import BuildLog
    from qdqtool.engine.diff import Explored
    from qdqtool.engine.view import view
    from qdqtool.pipeline.engine_files import engine_of, log_of
    from qdqtool.report.assemble import Material, assemble
    from qdqtool.report.rows import log_rows

    engine = engine_of(file)
    build_log = log_of(log, file, engine.form)
    layers = view(engine, profile=times, log=build_log)
    scene = replace(stage(engine), explored=layers, layers_file=file.name, log=build_log)
    material = Material(
        model_name=file.name,
        engine=engine,
        view=layers,
        audit=examine(scene),
        log=BuildLog(runs=(build_log,)) if build_log else None,
        sections={"log": log_rows(build_log)} if build_log else {},
    )
    return Opened(report=assemble(material), explored=Explored(name=file.name, engine=engine, view=layers))


PLUGIN = report
