"""Do the whole line: from a float ONNX model and samples to an audited INT8 engine and a report.

Finished steps are kept in the run folder; the same command again goes on where files are no longer fresh.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def run(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    samples: Annotated[
        str,
        typer.Option(
            help="Calibration samples: .npz, .npy, folder, Polygraphy .json, module:function, random:16."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Run folder.")],
    recipe: Annotated[str, typer.Option(help="Shipped recipe or .yaml file.")] = "conv-int8",
    eval_samples: Annotated[str | None, typer.Option(help="Evaluation samples; default: --samples.")] = None,
    labels: Annotated[str | None, typer.Option(help="Class indices of the evaluation samples.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one value of the recipe: place.first_layer=float."),
    ] = None,
    sm: Annotated[str | None, typer.Option(help="GPU architectures to build for: 86,89.")] = None,
    min_shapes: Annotated[str, typer.Option(help="Smallest shapes: input:1x3x224x224,other:1x8.")] = "",
    opt_shapes: Annotated[str, typer.Option(help="Usual shapes.")] = "",
    max_shapes: Annotated[str, typer.Option(help="Largest shapes.")] = "",
    build_cache: Annotated[Path | None, typer.Option(help="Folder of finished builds to share.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit with 1 from this severity on: error, warning, info.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print report.json instead of the summary.")
    ] = False,
) -> int:
    """Do the whole line: float ONNX model and samples in, audited INT8 engine and report out."""
    from qdqtool.cli.options import load_recipe
    from qdqtool.cli.progress import RichProgress
    from qdqtool.cli.screen import stdout
    from qdqtool.cli.verdict import exit_code
    from qdqtool.pipeline import runner
    from qdqtool.pipeline.request import RunRequest
    from qdqtool.report import terminal

    shapes = {"min_shapes": min_shapes, "opt_shapes": opt_shapes, "max_shapes": max_shapes}
    typed = [f"build.{name}='{value}'" for name, value in shapes.items() if value]
    typed += [f"build.sm=[{sm}]"] if sm else []
    typed += [f"audit.fail_on={fail_on}"] if fail_on else []
    order = RunRequest(
        model=model,
        recipe=load_recipe(recipe, [*(changes or ()), *typed]),
        samples=samples,
        eval_samples=eval_samples,
        labels=labels,
        out=out,
        cache=build_cache,
    )
    with RichProgress() as narrator:
        report = runner.run(order, narrator)
    if as_json:
        sys.stdout.write((out / "report.json").read_text("utf-8"))
    else:
        terminal.render(report, stdout())
        stdout().print(f"page: {out / 'report.html'}", markup=False, highlight=False)
    return exit_code(report, order.recipe)


PLUGIN = run
