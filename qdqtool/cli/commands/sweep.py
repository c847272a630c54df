"""Search over configurations for the best accuracy at the best speed; resumable, and shared by many workers.

The recipe's section `sweep` defines the search space: values for any key of the recipe, and how many of the most
sensitive nodes stay float. Each trial is a whole run; histograms and finished builds are shared. Accuracy is measured.
`sweep.speed` sets the source of times: "estimated" from the layers of the real engine by a roofline of `sweep.device`;
"engine" measured on this machine's GPU; "measured" as latency of onnxruntime on `--device`; "none" for no times. Measurements
alternate with one reference: the base recipe's engine, or the float model. With `--storage postgresql://...` the same
command on other machines joins the work, and `--cluster` uses all workers of a Dask cluster; a worker that dies loses
only its running trial.

With `--on ssh://user@host` (or `--on local`) trtexec times the trials on that machine, in alternation. The sweep
chooses by these times. Models and times stay there, so the same command can continue. `--dry-run` prints the commands.

Without a connection, `--export FOLDER` writes the models of all trials and one script that times them with trtexec on a
machine that has one; the same command with `--import times.json` then chooses by these measured times.

A Dask worker runs what its scheduler sends, so `--cluster` contacts only the given address; without an address it stays
on this machine (127.0.0.1). Dask and PostgreSQL are not encrypted or authenticated by default: use a `tls://` address
with certificates in Dask's configuration, and `?sslmode=verify-full` in the address of the database. Put the password
into ~/.pgpass or PGPASSWORD instead of the address; it is hidden in messages and in the list of processes.

    --set 'sweep.space={"calibrate.method": [max, mse], "calibrate.bias": [keep, correct],
                        "place.per_channel": [true, false], "insert.types": [fp32, fp16]}'

    qdqtool sweep model.onnx --samples calibration/ --eval-samples evaluation/ --labels labels.tsv --out runs/sweep

Formats can be searched for each group of layers, for the architectures in `--sm`: a format that one of them cannot run
gives a failed trial with this reason. `--pick 'max-drop 0.5'` writes the fastest trial within an accuracy limit to the
run folder OUT/pick; without labels use a noise limit, `--pick 'min-sqnr 30'`:

    qdqtool sweep model.onnx --samples data/ --sm 89 --set 'sweep.space={"place.formats.*fc*": [int8, fp8]}' --pick 'min-sqnr 30' --out runs/fp8
"""

from __future__ import annotations

import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from qdqtool.cli.options import (
    TARGET_HELP,
    BuildCache,
    Changes,
    CustomOps,
    Device,
    DryRun,
    OnSeveral,
    Plugins,
    Preset,
    Trtexec,
    for_device,
    for_operators,
    for_preset,
)


def sweep(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    samples: Annotated[str, typer.Option(help="Calibration samples.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results of the sweep.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", "-r", help="Base recipe, shipped or .yaml file; default: the one that fits the model."
        ),
    ] = None,
    eval_samples: Annotated[str | None, typer.Option(help="Evaluation samples; default: --samples.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="File of class indices, one per evaluation sample.")
    ] = None,
    preprocess: Preset = None,
    changes: Changes = None,
    builder: Annotated[str | None, typer.Option(help="Builder to use: the name of a backend.")] = None,
    target: Annotated[str | None, typer.Option(help=TARGET_HELP)] = None,
    sm: Annotated[
        str | None,
        typer.Option(help="GPU architectures to build for: 86,89; times are estimated for the first."),
    ] = None,
    min_shapes: Annotated[str, typer.Option(help="Smallest shapes: input:1x3x224x224,other:1x8.")] = "",
    opt_shapes: Annotated[str, typer.Option(help="Usual shapes.")] = "",
    max_shapes: Annotated[str, typer.Option(help="Largest shapes.")] = "",
    build_cache: BuildCache = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of trials; default: all combinations with the samplers grid and gain, 50 with others.",
        ),
    ] = None,
    storage: Annotated[
        str,
        typer.Option(help="Database for the trials: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DB."),
    ] = "",
    study: Annotated[str, typer.Option(help="Name of this sweep in the database.")] = "",
    cluster: Annotated[
        str,
        typer.Option(
            help="Run trials on a Dask cluster: dask://host:8786; without a value or with `local`: on this machine."
        ),
    ] = "",
    pick: Annotated[
        str,
        typer.Option(
            help="Choose a trial by this limit and write its run folder OUT/pick: 'max-drop 0.5', 'min-accuracy 70', 'min-sqnr 30', 'max-ms 1.5'."
        ),
    ] = "",
    chart: Annotated[
        Path | None, typer.Option(help="Also write the chart to this .svg or .png file.")
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Also write the models of all trials into this folder, with a script that times them with trtexec."
        ),
    ] = None,
    times: Annotated[
        Path | None,
        typer.Option(
            "--import", help="times.json that the script of --export wrote; replaces the estimated times."
        ),
    ] = None,
    journal: Annotated[
        bool,
        typer.Option("--journal", help="Print every trial with its gain, and whether and why it was kept."),
    ] = False,
    device: Device = None,
    custom_ops: CustomOps = None,
    plugins: Plugins = None,
    on: OnSeveral = None,
    trtexec: Trtexec = "",
    dry_run: DryRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print sweep.json instead of the table.")] = False,
) -> None:
    """Try many configurations, and report those with the best accuracy for their speed."""
    from qdqtool.cli.options import building, fitting_recipe
    from qdqtool.cli.progress import Bars
    from qdqtool.cli.screen import show_journal, show_plan, show_table, stdout
    from qdqtool.io.files import write_text
    from qdqtool.pipeline.recipes import add_scoring
    from qdqtool.pipeline.request import RunRequest
    from qdqtool.pipeline.sweep import SweepRequest
    from qdqtool.pipeline.sweep import sweep as search
    from qdqtool.pipeline.sweep.elsewhere import ELSEWHERE, plan
    from qdqtool.report import sweeps
    from qdqtool.report.svg import check_picture, write_picture

    if chart is not None:
        check_picture(chart)
    shapes = (min_shapes, opt_shapes, max_shapes)
    engine = building(target=target, sm=sm, builder=builder, shapes=shapes)
    settings = [
        *for_preset(preprocess),
        *(changes or ()),
        *engine,
        *for_device(device),
        *for_operators(custom_ops, plugins),
    ]
    name, chosen = fitting_recipe(recipe, model, settings, labels=labels)
    base = RunRequest(
        model=model,
        recipe=chosen,
        samples=samples,
        eval_samples=eval_samples,
        labels=labels,
        out=out,
        cache=build_cache,
    )
    request = SweepRequest(
        base=base,
        recipe=name,
        settings=add_scoring(settings, labels),
        trials=trials,
        storage=storage,
        study=study,
        cluster=cluster,
        export=export,
        times=times,
        on=tuple(on or ()),
        trtexec=trtexec,
    )
    folder = export or out / ELSEWHERE
    if dry_run:
        show_plan(
            "search in this process, with estimated times",
            plan(on or (), folder, trials or 0, trtexec),
            "take the measured times, and choose by them",
        )
        return
    with Bars() as bars:
        result = search(request, pick, bars.show)
    write_text(out / "sweep.html", sweeps.page(result))
    if chart is not None:
        write_picture(chart, sweeps.chart(result))
    if as_json:
        sys.stdout.write((out / "sweep.json").read_text("utf-8"))
        return
    if journal:
        show_journal(result.journal.search, result.journal.objective, result.journal.rows)
    else:
        show_table(sweeps.table(result), spare=sweeps.SPARE)
    for sentence in sweeps.notes(result):
        stdout().print(sentence)
    if export is not None:
        stdout().print(
            f"on the machine with trtexec: python {quote(str(export / 'time_trials.py'))}; then run this command again with --import {quote(str(export / 'times.json'))}"
        )
    for number, word in enumerate((on or [])[1:], 2):
        stdout().print(
            f"times of {word}: {folder / f'times-{number}.json'}; to choose by them, run this command again with --import and this file"
        )
    stdout().print(f"page: {out / 'sweep.html'}")


PLUGIN = sweep
