"""Build an engine from an ONNX model and keep its log and its layer information.

Writes `engine.plan`, `build.log` (every line), `layers.txt` (if the builder supports it) and `build.json` to the
folder. The builder runs in a separate process: you can stop it with Ctrl-C, it has a time limit, and if it crashes the
message names the likely node.

    qdqtool build model.qdq.onnx --out built
    qdqtool build model.onnx --out built --opt-shapes image:1x3x224x224 --flags=--fp16
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qdqtool.cli.options import BuildCache, Plugins


def build(
    model: Annotated[Path, typer.Argument(help="ONNX model, with or without Q/DQ.")],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="Folder for the engine, its build log and its layer information."),
    ],
    builder: Annotated[str, typer.Option(help="Builder to use: the name of a backend.")] = "rtx",
    sm: Annotated[
        str,
        typer.Option(
            help="GPU architectures to build for: 86,89 (builder rtx only; other builders use the GPU of this machine)."
        ),
    ] = "86",
    min_shapes: Annotated[
        list[str] | None,
        typer.Option(
            help="Smallest shapes: input:1x3x224x224,other:1x8. Give it once per optimization profile."
        ),
    ] = None,
    opt_shapes: Annotated[list[str] | None, typer.Option(help="Usual shapes.")] = None,
    max_shapes: Annotated[list[str] | None, typer.Option(help="Largest shapes.")] = None,
    timeout: Annotated[float, typer.Option(min=1.0, help="Time limit of the build in seconds.")] = 1800.0,
    stack_mib: Annotated[
        int,
        typer.Option(
            min=8, max=65536, help="Stack size of the builder in MiB; raise it for long chains of nodes."
        ),
    ] = 1024,
    flags: Annotated[
        str,
        typer.Option(
            help='More build options, spelled as for trtexec: "--fp16 --builderOptimizationLevel=5".'
        ),
    ] = "",
    plugins: Plugins = None,
    retries: Annotated[
        int,
        typer.Option(
            min=0,
            help="Number of nodes or fused groups without an INT8 kernel from which the build may remove Q/DQ.",
        ),
    ] = 3,
    build_cache: BuildCache = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print build.json instead of a summary.")] = False,
) -> None:
    """Build an engine from an ONNX model and keep its log and its layer information."""
    from dataclasses import replace

    from qdqtool.backends import BUILDERS
    from qdqtool.backends.flags import split_flags
    from qdqtool.backends.shapes import several_profiles, usual_shapes
    from qdqtool.cli.progress import Bars
    from qdqtool.cli.screen import stderr, stdout
    from qdqtool.core.kinds import BUILD
    from qdqtool.core.protocols import BuildRequest
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.pipeline.building import build_engine
    from qdqtool.pipeline.random_shapes import shapes_of

    plugin = BUILDERS.load(builder)
    opened = load(model)
    limits = min_shapes or (), opt_shapes or (), max_shapes or ()
    usual = usual_shapes(opened.view.inputs) if any(limits) else shapes_of(opened)
    ranges, notes = several_profiles(opened.view.inputs, *limits, usual)
    request = BuildRequest(
        model=model,
        folder=out,
        targets=tuple(part.strip() for part in sm.split(",")),
        profiles=ranges,
        timeout_s=timeout,
        stack_mib=stack_mib,
        cache=build_cache,
        flags=(*split_flags(flags), *(f"--staticPlugins={path}" for path in plugins or ())),
    )
    with Bars() as bars:
        result, cost = build_engine(plugin, request, bars.show_build, most=retries)
    result = replace(result, notes=(*result.notes, *notes))
    BUILD.write(out / "build.json", result)
    if as_json:
        sys.stdout.write(BUILD.dump(result))
        return
    peak = f", {cost.peak_mib:.0f} MiB" if cost.peak_mib is not None else ""
    spent = "from the build cache" if cost.cached else f"in {cost.seconds:.1f} s{peak}"
    stdout().print(
        f"{out / result.engine}: {result.engine_bytes / 2**20:.1f} MiB for {', '.join(result.targets)}, {spent}"
    )
    for line in (*result.warnings, *result.notes):
        stderr().print(f"  {line}")


PLUGIN = build
