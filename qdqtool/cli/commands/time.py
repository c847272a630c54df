"""Time models or engines in turns, and report speed-ups with their 95 % intervals.

    qdqtool time fp16.plan int8.plan --trust          # engines, on a machine with an NVIDIA GPU
    qdqtool time float.onnx int8.onnx                 # models on onnxruntime's CPU
    qdqtool time m.onnx --device tensorrt             # models on another device
    qdqtool time fp16.onnx int8.onnx --on ssh://orin  # engines of these models, built and timed there

The candidates alternate (A B, B A, ...), so heat and clocks affect all equally. Each round gives one ratio; the result
is their geometric mean with Student's 95 % interval. If the interval contains 1, no difference is shown. Engines are
timed between CUDA events, without transfers: with trtexec if it is installed, with CUDA graphs and spin-wait as
releases from 11 do by default; otherwise with the Python package. Models are timed by the wall clock.

Loading an engine runs the code inside it, so it needs --trust. Timing of engines was never tested on real GPUs;
qdqtool's tests check its calls against the real bindings with stand-ins.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.cli.options import OnSeveral, Trtexec

if TYPE_CHECKING:
    from qdqtool.backends.timing.measure import Timing

# Half a terminal; --json lists them all.
_LAYERS_SHOWN = 15
_WARM_UP_MS = 200.0


def time(
    candidates: Annotated[
        list[Path], typer.Argument(help="ONNX models or engines to time; the first is the reference.")
    ],
    via: Annotated[
        str, typer.Option(help="Program that measures: auto, ort (onnxruntime), trtexec or trt.")
    ] = "auto",
    device: Annotated[
        str,
        typer.Option(
            "--device",
            "--provider",
            help="Where models run: cpu, cuda:1, tensorrt:trt_fp16_enable=1, rtx, ...",
        ),
    ] = "cpu",
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds for each model.")] = 10,
    iterations: Annotated[int, typer.Option(min=1, help="Number of inferences in each round.")] = 100,
    warm_up: Annotated[float, typer.Option(min=0, help="Warm-up time in milliseconds.")] = _WARM_UP_MS,
    shapes: Annotated[str, typer.Option(help="Shapes of dynamic inputs: input:1x3x224x224.")] = "",
    inputs: Annotated[Path | None, typer.Option(help=".npz file with inputs; default: random data.")] = None,
    trust: Annotated[
        bool, typer.Option(help="Allow loading of engines; loading an engine runs its code.")
    ] = False,
    any_release: Annotated[bool, typer.Option(help="Accept engines of another TensorRT release.")] = False,
    flags: Annotated[str, typer.Option(help='Further flags for trtexec: "--infStreams=2".')] = "",
    profile: Annotated[
        bool, typer.Option(help="Also measure the time of each layer, in separate runs.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(help="Folder for times and outputs in trtexec's formats.")
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Time limit of each measuring process in seconds.")
    ] = 1800.0,
    on: OnSeveral = None,
    trtexec: Trtexec = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the timing as JSON.")] = False,
) -> None:
    """Time models or engines in turns, and report speed-ups with their 95 % intervals."""
    from typing import cast, get_args

    from qdqtool.backends.flags import parse_flags, split_flags
    from qdqtool.backends.shapes import parse_shapes
    from qdqtool.backends.timing.measure import TIMING, TimeRequest, Via, measure
    from qdqtool.backends.timing.series import Effort
    from qdqtool.cli.progress import progress
    from qdqtool.errors import UsageError

    if via not in get_args(Via):
        raise UsageError(f"unknown value {via!r} of --via", fix=f"choose one of {', '.join(get_args(Via))}")
    request = TimeRequest(
        candidates=tuple(candidates),
        via=cast("Via", via),
        device=device,
        effort=Effort(rounds=rounds, iterations=iterations, warm_up_ms=warm_up),
        shapes=parse_shapes(shapes),
        inputs=inputs,
        trust=trust,
        any_release=any_release,
        flags=parse_flags(split_flags(flags)),
        profile=profile,
        save=save,
        timeout_s=timeout,
    )
    if on:
        idle = {
            "--via": via != "auto",
            "--device": device != "cpu",
            "--shapes": bool(shapes),
            "--inputs": inputs is not None,
            "--warm-up": warm_up != _WARM_UP_MS,
        }
        for option in (name for name, is_set in idle.items() if is_set):
            raise UsageError("has no effect with --on", fix=f"remove {option} or --on", where=option)
    with progress() as bars:
        bar = bars.add_task("time", total=None)
        if on:
            options = ["--rounds", str(rounds), "--iterations", str(iterations), *["--profile"] * profile]
            timing = _elsewhere(on, candidates, trtexec, save, split_flags(flags), options)
        else:
            timing = measure(request, lambda done, total: bars.update(bar, completed=done, total=total))
    if as_json:
        sys.stdout.write(TIMING.dump(timing))
    else:
        _show(timing)


def _elsewhere(
    on: list[str],
    candidates: list[Path],
    trtexec: str,
    save: Path | None,
    flags: tuple[str, ...],
    options: list[str],
) -> Timing:
    """Build and time models on other machines, and return the times.

    Raises:
        InputFileError: a candidate does not exist.
        UsageError: a candidate is not an ONNX model: engines are of one machine.
    """
    from tempfile import TemporaryDirectory

    from qdqtool.errors import InputFileError, UsageError
    from qdqtool.pipeline.sweep.elsewhere import host_of, time_models

    for path in candidates:
        if not path.exists():
            raise InputFileError("the file does not exist", fix="check the path", where=str(path))
        if path.suffix.lower() != ".onnx":
            raise UsageError(
                "--on needs ONNX models: the other machine builds them",
                fix="pass .onnx files",
                where=str(path),
            )
    with TemporaryDirectory(prefix="qdqtool-time-") as folder:
        hosts = [host_of(word) for word in on]
        return time_models(hosts, candidates, save or Path(folder), trtexec, flags, options)


def _show(timing: object) -> None:
    """Print a table of times, the slowest layers, and whether each candidate is faster than the first."""
    from rich.table import Table
    from rich.text import Text

    from qdqtool.backends.timing.measure import Timing
    from qdqtool.cli.screen import show_table, stderr, stdout

    assert isinstance(timing, Timing)
    table = Table(box=None, pad_edge=False)
    for title in ("", "median ms", "mean", "p90", "p99", "spread", "runs"):
        table.add_column(title, justify="left" if not title else "right")
    for summary in timing.summaries:
        times = (summary.median, summary.mean, summary.p90, summary.p99)
        spread = f"{100 * summary.spread:.1f} %" + (" unstable" if summary.unstable else "")
        table.add_row(Text(summary.name), *(f"{time:.4f}" for time in times), spread, str(summary.count))
    show_table(table)
    for profile in timing.profiles:
        stdout().print(f"\n{profile.name}: layers by time, average ms")
        for layer in sorted(profile.layers, key=lambda layer: -layer.average)[:_LAYERS_SHOWN]:
            stdout().print(f"  {layer.average:9.4f}  {layer.name}")
    for verdict in timing.verdicts:
        stdout().print(str(verdict))
    for clock in dict.fromkeys(summary.clock for summary in timing.summaries):
        stderr().print(f"measured: {clock}")


PLUGIN = time
