"""Measure how far two models are apart on the same samples.

Both run on onnxruntime on the CPU, Q/DQ nodes exactly as they stand. With labels in the samples, or given by --labels,
top-1 and top-5 of both come with a 95 % confidence interval of the difference.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def compare(
    reference: Annotated[Path, typer.Argument(help="ONNX model to compare with, usually the float one.")],
    candidate: Annotated[Path, typer.Argument(help="ONNX model to judge, usually the Q/DQ one.")],
    samples: Annotated[
        str, typer.Option(help="Samples: .npz, .npy, folder, Polygraphy .json, module:function, random:16.")
    ],
    labels: Annotated[str | None, typer.Option(help="Class indices of the samples.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Shipped recipe or .yaml file: preprocessing and metrics.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one value of the recipe: compare.limit=100.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON instead of a summary.")
    ] = False,
) -> int:
    """Measure how far two models are apart on the same samples."""
    from qdqtool.accuracy.compare import compare as compare_runners
    from qdqtool.backends.ort import open_runner
    from qdqtool.calibration.samples import open_samples
    from qdqtool.cli.screen import progress, stdout
    from qdqtool.cli.verdict import accuracy_missed, tell
    from qdqtool.core.kinds import ACCURACY
    from qdqtool.report import terminal
    from qdqtool.workflows import recipes

    chosen = recipes.load(recipe, changes or [])
    left, right = (open_runner(path, description=path.name) for path in (reference, candidate))
    source = open_samples(samples, left.inputs, chosen.samples.preprocess, labels=labels)
    with progress() as bars:
        bar = bars.add_task("compare")
        found = compare_runners(
            left,
            right,
            source,
            chosen.compare,
            on_progress=lambda done, total: bars.update(bar, completed=done, total=total),
        )
    if as_json:
        sys.stdout.write(ACCURACY.dump(found))
    else:
        terminal.render_comparison(found, stdout())
    return tell(accuracy_missed(found, chosen.compare.max_drop))


PLUGIN = compare
