"""Choose a range for every tensor that will be quantized, by running the float model on samples.

The samples run once on onnxruntime, one by one, and only histograms are kept: memory does not grow with the number of
samples, and the order of samples does not matter. The histograms are stored next to the table
(`table.histograms.npz`): after an interruption, a repeated command continues from there, and another --method needs
no second pass.

On several machines: run the same command on each with --shard 1/4 ... 4/4 and -o part-1.npz ..., then --merge the
parts (also pass --samples if the recipe corrects biases). Or let `--cluster dask://host:8786` distribute the shards
to the workers of a Dask scheduler; --cluster without an address starts workers on this machine. The merged table is
equal bit for bit.

If one scale is too coarse for small input channels of a depthwise convolution, finding CAL150 at the end names it, with
a fix.

    qdqtool calibrate model.onnx --samples images/ --method all -o table.json

`--why TENSOR` prints the decisions behind the range of one tensor. `--journal` prints the candidates that
`calibrate.method=auto` tried. Both are in the table too, as `origin` of each range and as `journal`. `--page FILE` writes
the ranges, their histograms and these candidates as a page.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import calibrators
from qdqtool.cli.options import (
    BuilderGpus,
    BuilderTarget,
    Changes,
    CustomOps,
    Device,
    FittingRecipe,
    Preset,
    for_builder,
    for_device,
    for_operators,
    for_preset,
)

if TYPE_CHECKING:
    from qdqtool.calibration.histograms import Histograms
    from qdqtool.core.calibration import CalibrationTable
    from qdqtool.pipeline.calibration import Calibration


def calibrate(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    samples: Annotated[
        str, typer.Option(help="Samples: .npz, .npy, folder, Polygraphy .json, module:function, random:16.")
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File for the calibration table; with --shard, for the histograms."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(calibrators.names())}, auto, or all; default: the recipe's."),
    ] = None,
    recipe: FittingRecipe = None,
    preprocess: Preset = None,
    changes: Changes = None,
    target: BuilderTarget = None,
    sm: BuilderGpus = None,
    placement: Annotated[
        Path | None, typer.Option(help="placement.json to use; default: place again.")
    ] = None,
    histograms: Annotated[
        Path | None, typer.Option(help="File for the histograms; default: next to --out.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(help="Run only one part of the samples: 2/8 is the second of eight.")
    ] = None,
    merge: Annotated[
        list[str] | None,
        typer.Option(help="Merge the histograms that --shard wrote: file, folder or glob pattern."),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Calibrate on a Dask cluster: dask://host:8786; without a value or with `local`: on this machine."
        ),
    ] = None,
    nan: Annotated[
        str | None,
        typer.Option(help="If the data contains NaN or Inf: error or skip; default: the recipe's value."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of processors to use; default: all.")
    ] = None,
    why: Annotated[
        str | None,
        typer.Option(metavar="TENSOR", help="Explain how the range of this tensor was chosen."),
    ] = None,
    journal: Annotated[
        bool, typer.Option("--journal", help="Print all ranges that were tried, with the gain of each.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(help="Write an HTML page with ranges, histograms and tried candidates to this file."),
    ] = None,
    device: Device = None,
    custom_ops: CustomOps = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
) -> None:
    """Choose a range for every tensor that will be quantized, by running the float model on samples."""
    from qdqtool.calibration.histograms import parse_shard, save_histograms
    from qdqtool.calibration.table import working_methods
    from qdqtool.cli.options import fitting_recipe
    from qdqtool.cli.screen import readable, show_page, stderr
    from qdqtool.core.recipe import AUTO
    from qdqtool.errors import UsageError
    from qdqtool.pipeline import calibration
    from qdqtool.report.assemble import report_of_ranges

    if nan not in {None, "error", "skip"}:
        raise UsageError(f"invalid value {nan!r} for --nan", fix="choose error or skip")
    _check_ways(samples, shard, merge, cluster)
    _check_output(shard, reads=why is not None or journal, page=page, as_json=as_json)
    _, chosen = fitting_recipe(
        recipe,
        model,
        [
            *for_preset(preprocess),
            *(changes or []),
            *for_builder(target, sm),
            *for_device(device),
            *for_operators(custom_ops),
        ],
    )
    request = calibration.CalibrationRequest(
        model=model,
        recipe=chosen,
        samples=samples,
        placement=placement,
        on_nan=chosen.samples.nan if nan is None else "skip" if nan == "skip" else "error",
        threads=threads,
    )
    job = calibration.Calibration(request)
    own = chosen.calibrate.method
    # The table of the recipe's own method comes last: it is the one that --out names.
    every = (*working_methods(), AUTO) if method == "all" else (method or own,)
    methods = tuple(sorted(every, key=own.__eq__))
    kept = histograms or (out.with_suffix(".histograms.npz") if out else None)
    if shard is not None:
        place = out or histograms
        if place is None:
            raise UsageError("--shard needs --out: the file for its histograms", fix="add -o part.npz")
        collected = _collect_histograms(job, methods, place, parse_shard(shard))
        stderr().print(f"{collected.span}: wrote {place}")
        return
    if merge:
        collected = calibration.merge(merge)
        job.check(collected)
        if histograms is not None:
            save_histograms(histograms, collected)
        if AUTO in methods and not samples:
            hint = "each tensor uses the calibrator with the lowest error of that tensor; add --samples to choose by the error of the network's outputs"
            stderr().print(hint)
        if chosen.weights.rounds_by_outputs and not samples:
            stderr().print(
                "weights are rounded to the nearest value; add --samples for the other rounding methods"
            )
        if chosen.calibrate.bias == "correct" and not samples:
            stderr().print("biases are not corrected; add --samples to correct them")
    elif cluster is not None:
        collected = _from_cluster(job, methods, kept, cluster)
    else:
        collected = _collect_histograms(job, methods, kept, (0, 1))
    tables = job.tables(collected, methods)
    *_, main = tables.values()
    _deliver(tables, out, as_json=as_json, why=why, journal=journal)
    if page is not None:
        show_page(report_of_ranges(model.name, main, job.placement, collected.tensors), page)
    warnings = [f"{each.code} {each.subject}: {each.reason}; {each.fix}" for each in job.findings(main)]
    for warning in (*job.input_notes, *calibration.doubts(collected), *warnings, *main.notes):
        stderr().print(readable(warning), style="yellow")


def _check_output(shard: str | None, *, reads: bool, page: Path | None, as_json: bool) -> None:
    """Refuse output options that --shard does not support, and text output together with --json."""
    from qdqtool.errors import UsageError

    if shard is not None and (reads or page is not None):
        raise UsageError(
            "--why, --journal and --page cannot be combined with --shard",
            fix="use these options in the --merge command",
        )
    if as_json and reads:
        raise UsageError(
            "--why and --journal cannot be combined with --json",
            fix="use the fields `origin` and `journal` of the JSON",
        )


def _check_ways(samples: str, shard: str | None, merge: list[str] | None, cluster: str | None) -> None:
    """Refuse missing or contradictory options for the source of the histograms."""
    from qdqtool.errors import UsageError

    if not samples and not merge:
        raise UsageError(
            "calibrate needs --samples or --merge", fix="pass the samples, or the shards to merge"
        )
    if (shard is not None) + bool(merge) + (cluster is not None) > 1:
        raise UsageError("--shard, --merge and --cluster cannot be combined", fix="use only one of them")


def _collect_histograms(
    job: Calibration, methods: tuple[str, ...], kept: Path | None, shard: tuple[int, int]
) -> Histograms:
    from calibrators.kernels import cache_problem
    from qdqtool.cli.screen import stderr

    with _bar() as on_progress:
        collected = job.collect(job.collect_options(methods), kept, shard, on_progress)
    for name in job.samples.skipped:
        stderr().print(f"skipped because of NaN or Inf: {name}")
    if cache_problem():
        stderr().print(
            f"the compiled loops cannot be cached, so every process compiles them again: {cache_problem()}"
        )
    return collected


def _from_cluster(job: Calibration, methods: tuple[str, ...], kept: Path | None, address: str) -> Histograms:
    from qdqtool.pipeline.cluster import collect_on_cluster

    with _bar() as on_progress:
        return collect_on_cluster(job, job.collect_options(methods), address, kept, on_progress)


@contextmanager
def _bar() -> Iterator[Callable[[int, int | None], None]]:
    """Show a progress bar with the rate and the remaining time."""
    from qdqtool.cli.progress import progress

    with progress() as bars:
        bar = bars.add_task("calibrate", total=None)
        began = time.monotonic()
        first: int | None = None

        def on_progress(done: int, total: int | None) -> None:
            nonlocal first
            first = done - 1 if first is None else first
            rate = (done - first) / max(time.monotonic() - began, 1e-6)
            bars.update(bar, completed=done, total=total, description=f"calibrate {rate:.3g} samples/s")

        yield on_progress


def _deliver(
    tables: dict[str, CalibrationTable], out: Path | None, *, as_json: bool, why: str | None, journal: bool
) -> None:
    """Write the table of the last method to `out`, and print the tables that the options ask for.

    If there are tables of several methods, also write each one to a file beside `out`.
    """
    from qdqtool.cli.screen import stderr, stdout
    from qdqtool.core.kinds import CALIBRATION

    *_, main = tables.values()
    decided = [] if why is None else _list_decisions(main, why)
    if out is not None:
        for method, table in tables.items() if len(tables) > 1 else ():
            CALIBRATION.write(out.with_suffix(f".{method}.json"), table)
        CALIBRATION.write(out, main)
        stderr().print(f"wrote {out}")
    if as_json:
        sys.stdout.write(CALIBRATION.dump(main))
    elif out is None and why is None and not journal:
        _show(main)
    for line in decided:
        stdout().print(line)
    if journal:
        _show_journal(main)
    if not main.meaningful:
        stderr().print("the samples were random: these ranges mean nothing", style="yellow")


def _list_decisions(table: CalibrationTable, tensor: str) -> list[str]:
    """Return the decisions for the range of one tensor in order, one line each.

    Raises:
        UsageError: the table has no such tensor.
    """
    from difflib import get_close_matches

    from qdqtool.cli.screen import readable
    from qdqtool.core.wording import count_noun
    from qdqtool.errors import UsageError

    ranges = table.by_tensor()
    if tensor not in ranges:
        close = get_close_matches(tensor, ranges, n=1)
        raise UsageError(
            f"tensor {tensor!r} has no range in the calibration table",
            fix=f"did you mean {close[0]!r}?"
            if close
            else "name a tensor of the table; run without --why to print the table",
            where="--why",
        )
    entry = ranges[tensor]
    several = f", the largest of {count_noun(len(entry.amax), 'channel')}" if len(entry.amax) > 1 else ""
    steps = [*entry.origin, f"range {max(entry.amax):.6g}{several}"]
    if entry.block is None:
        steps.append(
            f"{entry.format} step {max(entry.scales):.6g}, rounded up to a value that the file can store"
        )
    return [readable(tensor), *(f"  {number}. {readable(step)}" for number, step in enumerate(steps, 1))]


def _show_journal(table: CalibrationTable) -> None:
    from qdqtool.cli.screen import show_journal, stdout

    if table.journal is not None:
        show_journal(table.journal.search, table.journal.objective, table.journal.rows)
        return
    hint = "no ranges were tried: only calibrate.method=auto compares ranges by the network's outputs"
    stdout().print(hint)


def _show(table: CalibrationTable) -> None:
    from rich.table import Table

    from qdqtool.cli.screen import escape_markup, readable, show_table

    rows = Table("tensor", "amax", "scale", "seen", "by", "note", box=None)
    for entry in table.ranges:
        span = "" if entry.low is None else f"{entry.low:.4g} .. {entry.high:.4g}"
        several = f" x {len(entry.amax)}" if len(entry.amax) > 1 else ""
        rows.add_row(
            escape_markup(readable(entry.tensor)),
            f"{max(entry.amax):.6g}{several}",
            f"{max(entry.scales):.6g}",
            span,
            entry.method,
            escape_markup(readable(entry.note)),
        )
    show_table(rows)


PLUGIN = calibrate
