"""Find the nodes whose quantization costs most accuracy, and recommend which nodes to keep float.

Works on onnxruntime alone, so it needs neither a GPU nor the precision API that TensorRT 11 removed. Every quantized
node is switched on and off in one model that is opened once. A quick estimate on a few samples ranks all nodes; the top
nodes are then measured on all samples, each quantized alone and each kept float. For these the table shows the cause of
the noise (clipped, too coarse, an outlier channel, weights) and the tried changes that reduced it. With --min-sqnr or
--max-drop it finds the smallest set of float nodes that meets the limit: it adds nodes by their gain in combination
with the others, and removes nodes that are not needed. With --out, an interrupted study continues.

    qdqtool sensitivity model.qdq.onnx --samples inputs.npz --min-sqnr 25
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qdqtool.cli.options import (
    BuilderGpus,
    BuilderTarget,
    CustomOps,
    Device,
    FittingRecipe,
    Preset,
    for_builder,
    for_device,
    for_operators,
    for_preset,
)


def sensitivity(
    model: Annotated[Path, typer.Argument(help="Q/DQ model, or float model that the recipe then quantizes.")],
    samples: Annotated[
        str, typer.Option(help="Samples: .npz, .npy, folder, Polygraphy .json, module:function, random:16.")
    ],
    eval_samples: Annotated[str | None, typer.Option(help="Evaluation samples; default: --samples.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="File of class indices, one per evaluation sample.")
    ] = None,
    recipe: FittingRecipe = None,
    preprocess: Preset = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one value of the recipe: compare.limit=64.")
    ] = None,
    target: BuilderTarget = None,
    sm: BuilderGpus = None,
    top: Annotated[
        int,
        typer.Option(min=1, help="Number of nodes to measure on all samples; the other nodes are estimated."),
    ] = 10,
    quick: Annotated[int, typer.Option(min=1, help="Number of samples for the estimates.")] = 4,
    group: Annotated[
        list[str] | None,
        typer.Option(
            help="Glob pattern: treat all matching nodes as one group, float or quantized together."
        ),
    ] = None,
    min_sqnr: Annotated[
        float | None,
        typer.Option(help="Recommend the smallest set of float nodes with at least this SQNR, in dB."),
    ] = None,
    max_drop: Annotated[
        float | None,
        typer.Option(help="Recommend the smallest set of float nodes that loses at most this many points."),
    ] = None,
    causes: Annotated[
        bool,
        typer.Option(help="Explain the noise of the noisiest nodes, and try changes that may reduce it."),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Folder for sensitivity.json and for finished measurements, from which a later call continues.",
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Samples to run in parallel; 0: one per processor.")
    ] = 0,
    journal: Annotated[
        bool, typer.Option("--journal", help="Print the changes that were tried, with the gain of each.")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Write the result as an HTML page to this file.")] = None,
    device: Device = None,
    custom_ops: CustomOps = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print sensitivity.json instead of a table.")
    ] = False,
) -> int:
    """Find the nodes whose quantization costs most accuracy, and recommend which nodes to keep float."""
    from qdqtool.cli.options import fitting_recipe
    from qdqtool.cli.progress import progress
    from qdqtool.cli.screen import show_journal, show_page, stdout
    from qdqtool.cli.verdict import print_missed
    from qdqtool.core.kinds import SENSITIVITY
    from qdqtool.pipeline.search.float_nodes import Limit
    from qdqtool.pipeline.search.sensitivity import SensitivityOptions, SensitivityRequest, study
    from qdqtool.report import terminal
    from qdqtool.report.assemble import report_of

    request = SensitivityRequest(
        model=model,
        recipe=fitting_recipe(
            recipe,
            model,
            [
                *for_preset(preprocess),
                *(changes or []),
                *for_builder(target, sm),
                *for_device(device),
                *for_operators(custom_ops),
            ],
            labels=labels,
        )[1],
        samples=samples,
        eval_samples=eval_samples,
        labels=labels,
        options=SensitivityOptions(
            quick=quick,
            top=top,
            groups=tuple(group or ()),
            limit=Limit(max_drop=max_drop, min_sqnr=min_sqnr),
            causes=causes,
        ),
        out=out,
        workers=workers,
    )
    with progress() as bars:
        bar = bars.add_task("sensitivity")
        result = study(
            request, lambda step, done, total: bars.update(bar, description=step, completed=done, total=total)
        )
    page = page or (out / "sensitivity.html" if out else None)
    if page is not None:
        show_page(report_of(result), page)
    if as_json:
        sys.stdout.write(SENSITIVITY.dump(result))
    elif journal:
        show_journal(result.journal.search, result.journal.objective, result.journal.rows)
    else:
        terminal.render_sensitivity(result, stdout())
    is_limited = min_sqnr is not None or max_drop is not None
    return print_missed(
        ["no set of float nodes meets the limit"] if is_limited and result.advice is None else []
    )


PLUGIN = sensitivity
