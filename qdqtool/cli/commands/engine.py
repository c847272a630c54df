"""Inspect an engine: layers, types, formats, costs, times, its graph, and how it differs from another one.

Reads layer dumps, the files of `--exportLayerInfo` of every TensorRT release since 8.2, whole build logs, and a
profile alone. Times come from `--exportProfile` files, logs of runs with `--dumpProfile`, or Nsight Systems (`nsys
export --type sqlite`). The verbose log of the build (`--log`) adds the history of each layer in the optimizer. Files
may be compressed (xz, gzip, bzip2) and of any size. It needs no GPU and no TensorRT.

    qdqtool engine show runs/digits/layers.json
    qdqtool engine layers layers.json --where precision=fp32 --sort bytes --out layers.csv
    qdqtool engine top layers.json --profile profile.json --by ms
    qdqtool engine diff fp16.json int8.json -p fp16.profile.json -p int8.profile.json
    qdqtool engine graph layers.json --out graph.svg
    qdqtool engine about times.json
    qdqtool engine is-int8 runs/digits
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.core.wording import Command, count_noun

if TYPE_CHECKING:
    from rich.table import Table

    from qdqtool.core.explore import EngineView
    from qdqtool.engine.about import About
    from qdqtool.engine.diff import Explored

PLUGIN = typer.Typer(
    help="Inspect an engine: layers, types, formats, costs, times, graph, and differences between engines.",
    no_args_is_help=True,
)
_LABEL = 30
"""Longest title of a column, in characters, so that two columns and the row titles fit into 80."""
File = Annotated[Path, typer.Argument(help="Layer information, build log, or layers.json of a run folder.")]
Profile = Annotated[
    Path | None,
    typer.Option(
        "--profile",
        "-p",
        help="Layer times: JSON of --exportProfile, a log with --dumpProfile, or a SQLite export of Nsight Systems.",
    ),
]
CostModelName = Annotated[
    str,
    typer.Option("--cost-model", help="How to count bytes: exact, or trex (as NVIDIA's TREx explorer does)."),
]
DeviceName = Annotated[
    str,
    typer.Option(
        "--device", help="GPU whose limits are drawn: a name, or the metadata JSON of a trtexec run."
    ),
]
Log = Annotated[
    Path | None,
    typer.Option(
        help="Verbose log of the build: adds the optimizer's steps and the kernel search of each layer."
    ),
]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", help="Show only layers whose column matches: precision=int8."),
]


@PLUGIN.command()
def show(
    file: File,
    profile: Profile = None,
    cost_model: CostModelName = "exact",
    device: DeviceName = "",
    log: Log = None,
    where: Where = None,
    tell: Annotated[
        bool, typer.Option("--tell", help="Print all facts about each layer instead of a table.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all layers as JSON.")] = False,
) -> None:
    """Print the layers of an engine in launch order, with costs and times.

    With the log of the build it also shows the layer's Q and DQ nodes, the optimizer's events and the kernel search; if
    FILE is a whole log, it is used as this log too.
    """
    from qdqtool.cli.engine_words import stories, summary
    from qdqtool.core.kinds import ENGINE_VIEW
    from qdqtool.engine.layer_table import select

    view = _explore(file, profile, cost_model, device, log).view
    chosen = select(view, where=tuple(where or ()))
    if as_json:
        sys.stdout.write(ENGINE_VIEW.dump(replace(view, layers=chosen)))
        return
    if tell:
        _say(*stories(view, chosen))
    else:
        _print(_table(view, tuple(where or ()), "", None))
    _say(*summary(view, len(chosen)))


@PLUGIN.command()
def layers(
    file: File,
    profile: Profile = None,
    cost_model: CostModelName = "exact",
    device: DeviceName = "",
    log: Log = None,
    where: Where = None,
    sort: Annotated[str, typer.Option(help="Column to sort by; the largest numbers come first.")] = "",
    columns: Annotated[str, typer.Option(help="Columns to write, joined by commas.")] = "",
    out: Annotated[Path | None, typer.Option("--out", "-o", help=".csv or .parquet file to write.")] = None,
) -> None:
    """Write the layers of an engine as a table: CSV to standard output, or a .csv or .parquet file."""
    from qdqtool.cli.screen import stderr
    from qdqtool.engine.layer_table import COLUMNS, select, table_of
    from qdqtool.io.tables import csv_of, write_table

    view = _explore(file, profile, cost_model, device, log).view
    chosen = select(view, where=tuple(where or ()), sort=sort)
    if where:
        stderr().print(f"{len(chosen)} of {count_noun(len(view.layers), 'layer')}: {', '.join(where)}")
    names = tuple(name.strip() for name in columns.split(",")) if columns else COLUMNS
    table = table_of(chosen, names)
    if out is None:
        sys.stdout.write(csv_of(table))
    else:
        write_table(out, table)


@PLUGIN.command()
def top(
    file: File,
    profile: Profile = None,
    by: Annotated[str, typer.Option(help="Column to rank by: ms, bytes, macs, tflops, gbs.")] = "",
    count: Annotated[int, typer.Option("--count", "-n", help="Number of layers to print.", min=1)] = 10,
    cost_model: CostModelName = "exact",
    device: DeviceName = "",
    log: Log = None,
) -> None:
    """Print the most expensive layers of an engine: by time if there is a profile, else by bytes."""
    from qdqtool.cli.engine_words import summary

    view = _explore(file, profile, cost_model, device, log).view
    column = by or ("ms" if view.total_ms is not None else "bytes")
    _print(_table(view, (), column, count))
    _say(*summary(view, min(count, len(view.layers))))


@PLUGIN.command()
def diff(
    first: File,
    others: Annotated[
        list[Path], typer.Argument(help="Layer information of the engines to compare with the first.")
    ],
    profiles: Annotated[
        list[Path] | None,
        typer.Option("--profile", "-p", help="Layer times of every engine, in the order of the engines."),
    ] = None,
    cost_model: CostModelName = "exact",
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Compare engines of one model, layer by layer: which layers are faster or slower, and why.

    Every further engine is compared with the first.
    """
    from qdqtool.cli.engine_words import difference
    from qdqtool.core.difference import EngineDiffs
    from qdqtool.core.kinds import ENGINE_DIFF
    from qdqtool.engine.diff import compare
    from qdqtool.errors import UsageError

    files = [first, *others]
    if profiles and len(profiles) != len(files):
        raise UsageError(
            f"{count_noun(len(files), 'engine needs', 'engines need')} {count_noun(len(files), 'profile')}",
            fix="pass --profile once per engine, in order, or not at all",
        )
    times: list[Path | None] = [*profiles] if profiles else [None] * len(files)
    explored = [_explore(file, profile, cost_model, "") for file, profile in zip(files, times, strict=True)]
    base, *compared = _name_engines(explored, files)
    result = EngineDiffs(diffs=tuple(compare(base, rival) for rival in compared))
    if as_json:
        sys.stdout.write(ENGINE_DIFF.dump(result))
    else:
        for pair in result.diffs:
            _say(*difference(pair))


@PLUGIN.command()
def graph(
    file: File,
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write: .svg, .png, .dot or .onnx.")],
    model: Annotated[
        Path | None,
        typer.Option(
            help="ONNX model of the engine: writes a copy of the model with the engine's layers as annotations, for Netron."
        ),
    ] = None,
    profile: Profile = None,
    cost_model: CostModelName = "exact",
) -> None:
    """Draw the engine: SVG, PNG or DOT coloured by precision, or an ONNX file for Netron.

    An .onnx file shows one node per engine layer. With --model it is this model, with precision, layer, time and
    bytes in the metadata of its nodes.
    """
    from qdqtool.cli import engine_files

    explored = _explore(file, profile, cost_model, "")
    if model is not None:
        engine_files.annotate_model(explored, model, out)
    else:
        engine_files.draw_engine(explored, out)
    _talk(f"wrote {out}")


@PLUGIN.command()
def about(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON file of trtexec: --exportTimes, --exportProfile, --exportOutput, or metadata; or ONNX model: its origin."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the content as JSON.")] = False,
) -> None:
    """Show the content of other files of trtexec (times, outputs, options, device), or the origin of an ONNX model."""
    from qdqtool.core.artefacts import Artefact
    from qdqtool.engine.about import About
    from qdqtool.engine.about import about as read_about

    content = _about_model(file) if file.suffix.lower() == ".onnx" else read_about(file)
    if as_json:
        sys.stdout.write(Artefact(kind="about", schema=1, type=About).dump(content))
        return
    for fact in content.facts:
        _say(f"{fact.heading}  {fact.name}: {fact.value}")


def _about_model(file: Path) -> About:
    """Return the tool that quantized a model, its exporter, and its metadata."""
    from qdqtool.engine.about import About, Fact
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.graph.provenance import exporter, origin, printable_metadata

    model = load(file)
    sources = {
        "quantized by": origin(model) or "an unknown tool or not at all",
        "written by": exporter(model),
    }
    facts = [Fact(heading="origin", name=name, value=value) for name, value in sources.items() if value]
    facts += [
        Fact(heading="metadata", name=name, value=value) for name, value in printable_metadata(model).items()
    ]
    return About(form="model", facts=tuple(facts))


@PLUGIN.command("is-int8")
def is_int8(
    file: Annotated[Path, typer.Argument(help="Run folder, layer information, or a Q/DQ model to build.")],
    reference: Annotated[
        Path | None,
        typer.Option(
            "--float",
            help="Float engine in one of these forms; default for a Q/DQ model: the model is built without its Q/DQ.",
        ),
    ] = None,
    plans: Annotated[
        list[Path] | None,
        typer.Option("--plan", help="Plan file; give it twice: INT8 engine, then float engine."),
    ] = None,
    outputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--outputs",
            help="File of --exportOutput for the same input; give it twice: INT8 engine, then float engine.",
        ),
    ] = None,
    profiles: Annotated[
        list[Path] | None,
        typer.Option("--profile", "-p", help="Layer times; give it twice: INT8 engine, then float engine."),
    ] = None,
    least: Annotated[
        float,
        typer.Option(
            "--min-share",
            help="Fail if the share of INT8 compute kernels is smaller than this.",
            min=0.0,
            max=1.0,
        ),
    ] = 0.0,
    sm: Annotated[str, typer.Option(help="GPU architecture to build a model for.")] = "86",
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as JSON.")] = False,
) -> int:
    """Check whether an engine that is called INT8 computes in INT8; exit with 1 if it does not.

    The kernels give the answer. A float build of the same model, plan files, outputs and times are further evidence;
    pass each of these options twice, for the INT8 and for the float engine. A Q/DQ model is built with TensorRT for RTX
    twice, with and without its Q/DQ, and the outputs are compared on onnxruntime.
    """
    from qdqtool.cli import engine_files
    from qdqtool.cli.verdict import print_missed
    from qdqtool.core.kinds import NOOP
    from qdqtool.errors import UsageError

    if file.suffix.lower() == ".onnx":
        if plans or outputs or profiles:
            raise UsageError(
                "for a model, this command builds and measures both engines: --plan, --outputs and --profile are not allowed",
                fix="remove --plan, --outputs and --profile",
            )
        result = engine_files.build_both(file, reference, sm)
    else:
        result = engine_files.judge_recorded(file, reference, engine_files.besides(plans, outputs, profiles))
    if as_json:
        sys.stdout.write(NOOP.dump(result))
    else:
        _say(result.verdict.value, *(f"- {sign.text} [{sign.points.value}]" for sign in result.signs))
    missed = engine_files.list_missed(result, least)
    code = print_missed(missed)
    if missed and (file.suffix.lower() == ".onnx" or file.is_dir()):
        _talk(f"{Command('audit', (str(file),))} explains every node")
    return code


def _explore(
    file: Path, profile: Path | None, cost_model: str, device: str, log: Path | None = None
) -> Explored:
    from qdqtool.core.explore import CostModel
    from qdqtool.engine.diff import Explored
    from qdqtool.engine.profile_forms import read_profile
    from qdqtool.engine.roofline import find_device
    from qdqtool.engine.view import read_timed, view
    from qdqtool.errors import UsageError
    from qdqtool.pipeline.engine_files import log_of

    if cost_model not in {model.value for model in CostModel}:
        raise UsageError(
            f"unknown cost model {cost_model!r}", fix="choose exact or trex", where="--cost-model"
        )
    engine, times = read_timed(file)
    layers = view(
        engine,
        profile=read_profile(profile) if profile else times,
        cost_model=CostModel(cost_model),
        device=find_device(device) if device else None,
        log=log_of(log, file, engine.form),
    )
    for note in layers.notes:
        _talk(f"note: {note}")
    return Explored(name=_shorten_name(file), engine=engine, view=layers)


def _shorten_name(file: Path) -> str:
    """Return the name of a file. If it is long, its middle is left out."""
    return file.name if len(file.name) <= 29 else f"{file.name[:6]}...{file.name[-20:]}"


def _name_engines(engines: list[Explored], files: Sequence[Path]) -> list[Explored]:
    """Return the engines with distinct names.

    Equal names get their folders, else the differing parts of the file names, else numbers.
    """
    names = [engine.name for engine in engines]
    if len(set(names)) == len(names):
        return engines
    folders = [file.resolve().parent.name for file in files]
    if len(set(folders)) == len(folders):
        return [
            replace(engine, name=f"{folder}/{engine.name}")
            for engine, folder in zip(engines, folders, strict=True)
        ]
    words = _differing([file.name for file in files])
    if len(set(words)) == len(words) and all(words):
        return [replace(engine, name=word) for engine, word in zip(engines, words, strict=True)]
    return [replace(engine, name=f"{number}: {engine.name}") for number, engine in enumerate(engines, 1)]


def _differing(names: Sequence[str]) -> list[str]:
    """Return the names without the words at their beginning and end that all share."""
    words = [re.split(r"(?<=[^0-9A-Za-z])(?=[0-9A-Za-z])", name) for name in names]
    for end in (0, -1):
        while all(words) and len({own[end] for own in words}) == 1:
            for own in words:
                own.pop(end)
    left = ["".join(own).strip("_-. ") for own in words]
    return [word if len(word) <= _LABEL else f"{word[: _LABEL - 3]}..." for word in left]


def _table(view: EngineView, where: tuple[str, ...], sort: str, limit: int | None) -> Table:
    from rich.table import Table

    from qdqtool.cli.engine_words import cell
    from qdqtool.cli.screen import escape_markup
    from qdqtool.engine.layer_table import cells, select

    timed = ("ms", "tflops", "gbs") if view.total_ms is not None else ()
    roof = ("bound",) if view.device else ()
    logged = (
        ("qdq", "events", "candidates", "tuning_s") if any(layer.history for layer in view.layers) else ()
    )
    columns = (
        *timed,
        "bytes",
        "macs",
        "intensity",
        *roof,
        *logged,
        "precision",
        "kind",
        "inputs",
        "outputs",
        "name",
    )
    table = Table(box=None, pad_edge=False)
    for title in columns:
        words = title in {"name", "kind", "precision", "inputs", "outputs", "bound"}
        table.add_column(title, justify="left" if words else "right")
    for row in cells(select(view, where=where, sort=sort, limit=limit), columns):
        table.add_row(*(escape_markup(cell(value)) for value in row))
    return table


def _print(table: Table) -> None:
    from qdqtool.cli.screen import show_table

    show_table(table, spare=("outputs", "inputs", "intensity", "gbs", "tflops"))


def _say(*lines: str) -> None:
    from qdqtool.cli.screen import stdout

    for line in lines:
        stdout().print(line)


def _talk(line: str) -> None:
    from qdqtool.cli.screen import stderr

    stderr().print(line)
