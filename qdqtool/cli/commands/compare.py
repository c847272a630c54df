"""Measure the difference between the outputs of two models or engines on the same samples.

Each side is one of three things. An ONNX file runs on onnxruntime with unchanged Q/DQ nodes, and FP16 and BF16 are
rounded after every node; with --emulate, or "int:" before its path, it runs with the integer arithmetic of INT8
kernels. A TensorRT engine (.plan, .engine, .trt) runs on this machine's GPU in a separate process, if --trust allows
its code. Stored outputs are .npz, the JSON of Polygraphy or of trtexec --exportOutput, .raw files, or a folder of them.
With labels, top-1 and top-5 of both sides are shown with a 95 % confidence interval of the difference.

--explain shows whether a candidate differs from its Q/DQ model because of rounding, fusion, or another reason.

    qdqtool compare model.onnx model.qdq.onnx --samples inputs.npz
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qdqtool.cli.options import (
    ComparingRecipe,
    CustomOps,
    Device,
    Preset,
    for_device,
    for_operators,
    for_preset,
)


def compare(
    reference: Annotated[
        str, typer.Argument(help="Model, engine or stored outputs to compare with, usually the float model.")
    ],
    candidate: Annotated[
        str, typer.Argument(help="Model, engine or stored outputs to evaluate, usually the Q/DQ model.")
    ],
    samples: Annotated[
        str | None,
        typer.Option(
            help="Samples: .npz, .npy, folder, Polygraphy .json, module:function, random:16; "
            "not needed if both sides are stored outputs."
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="File of class indices, one per sample, folder of YOLO label files, or COCO .json file."
        ),
    ] = None,
    recipe: ComparingRecipe = None,
    preprocess: Preset = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one value of the recipe: compare.limit=100.")
    ] = None,
    inside: Annotated[
        bool, typer.Option("--inside", help="Also compare the tensors inside two ONNX models.")
    ] = False,
    emulate: Annotated[
        bool,
        typer.Option("--emulate", help="Compute the candidate with integers, as INT8 kernels do."),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Explain why the candidate differs; the reference must be a Q/DQ model."
        ),
    ] = False,
    layers: Annotated[
        Path | None, typer.Option(help="Layer information of the candidate's engine, for --explain.")
    ] = None,
    trust: Annotated[
        bool, typer.Option(help="Allow loading of engines; loading an engine runs its code.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write the comparison as an HTML page to this file.")
    ] = None,
    device: Device = None,
    custom_ops: CustomOps = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the comparison as JSON instead of a summary.")
    ] = False,
) -> int:
    """Measure the difference between the outputs of two models or engines on the same samples."""
    from qdqtool.cli.options import load_recipe
    from qdqtool.cli.progress import progress
    from qdqtool.cli.screen import show_page, stdout
    from qdqtool.cli.verdict import accuracy_missed, print_missed
    from qdqtool.core.kinds import ACCURACY
    from qdqtool.pipeline.comparing import ComparedSides, compare_match
    from qdqtool.pipeline.preparations import read_task
    from qdqtool.pipeline.torch_models import model_or_outputs
    from qdqtool.report import terminal
    from qdqtool.report.assemble import report_of

    task = () if labels is not None else read_task(Path(reference), recipe)
    reference, candidate = map(model_or_outputs, (reference, candidate))
    match = ComparedSides(
        reference=reference,
        candidate=f"int:{candidate}" if emulate and not candidate.startswith("int:") else candidate,
        samples=samples,
        labels=labels,
        recipe=load_recipe(
            recipe,
            [
                *task,
                *for_preset(preprocess),
                *(changes or []),
                *for_device(device),
                *for_operators(custom_ops),
            ],
            labels=labels,
        ),
        inside=inside,
        explain=explain,
        layers=layers,
        trust=trust,
    )
    with progress() as bars:
        bar = bars.add_task("compare")
        comparison = compare_match(match, lambda done, total: bars.update(bar, completed=done, total=total))
    if page is not None:
        show_page(report_of(comparison), page)
    if as_json:
        sys.stdout.write(ACCURACY.dump(comparison))
    else:
        terminal.render_comparison(comparison, stdout())
    return print_missed(accuracy_missed(comparison, match.recipe.compare.max_drop))


PLUGIN = compare
