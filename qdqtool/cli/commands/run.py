"""Do the whole pipeline: from an ONNX model to an audited INT8 engine and a report.

A float model is prepared, placed, calibrated, given Q/DQ, built, audited and compared with itself. A model with Q/DQ is
linted, repaired, predicted, built, audited and compared with its float form, or with the float model in `--reference`;
a float model with `--calibration-cache` first becomes a model with Q/DQ. Without `--samples` it uses random data:
placement, engine and audit are valid, but ranges and accuracy mean nothing.

With `--max-drop` or `--min-sqnr` it finds the smallest set of nodes that must not be INT8 to meet the limit. These
nodes run in FP8 (if every target supports it), FP16 or the type of the float part, whichever gives the fastest engine
(estimated); the report shows the cost in kernels and bytes. The subfolder `quantized` contains the run with every node
quantized.

If torch is installed, a model may come from PyTorch: a .pt2 file of torch.export (with `--trust`, because such files
may run code), or a function that returns a module and its example inputs. It is exported into the run folder.

Finished steps are kept in the run folder; the same command continues with the files that are not up to date.

    qdqtool run model.onnx
    qdqtool run model.onnx --samples images/ --labels labels.tsv --recipe conv-int8 --out runs/first
    qdqtool run model.onnx --samples images/ --eval-samples held-back/ --labels labels.tsv --max-drop 0.5
    qdqtool run quantized.onnx --samples inputs.npz
    qdqtool run model.onnx --calibration-cache calibration.cache --samples inputs.npz
    qdqtool run network.py:classifier --samples inputs.npz
"""

from __future__ import annotations

import sys
from functools import cache, partial
from pathlib import Path
from typing import Annotated

import typer

from qdqtool.cli.options import (
    TARGET_HELP,
    BuildCache,
    CustomOps,
    Device,
    FittingRecipe,
    Plugins,
    Preset,
    for_device,
    for_operators,
    for_preset,
)

_RANDOM = "random:16"
_RANDOM_FLOAT = "no --samples: using random data. Placement, engine and audit are valid; ranges and accuracy mean nothing, so do not deploy this engine"
_RANDOM_QDQ = "no --samples: using random data. The engine and its audit are valid; accuracy means nothing"


def run(
    model: Annotated[
        str,
        typer.Argument(
            help="ONNX model, float or with Q/DQ; also .pt2, file.py:function, timm:NAME, torchvision:NAME, YOLO .pt, Hugging Face folder."
        ),
    ],
    samples: Annotated[
        str | None,
        typer.Option(
            help="Calibration samples: .npz, .npy, folder, Polygraphy .json, module:function, random:16."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; default: runs/NAME of the model.")
    ] = None,
    recipe: FittingRecipe = None,
    eval_samples: Annotated[str | None, typer.Option(help="Evaluation samples; default: --samples.")] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="File of class indices, one per evaluation sample, folder of YOLO label files, or COCO .json file."
        ),
    ] = None,
    calibration_cache: Annotated[
        Path | None, typer.Option(help="Use the ranges of this TensorRT or onnxruntime cache.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="For a model with Q/DQ: float model to compare with.")
    ] = None,
    preprocess: Preset = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one value of the recipe: place.first_layer=float."),
    ] = None,
    builder: Annotated[str | None, typer.Option(help="Builder to use: the name of a backend.")] = None,
    target: Annotated[str | None, typer.Option(help=TARGET_HELP)] = None,
    sm: Annotated[str | None, typer.Option(help="GPU architectures to build for: 86,89.")] = None,
    min_shapes: Annotated[str, typer.Option(help="Smallest shapes: input:1x3x224x224,other:1x8.")] = "",
    opt_shapes: Annotated[str, typer.Option(help="Usual shapes.")] = "",
    max_shapes: Annotated[str, typer.Option(help="Largest shapes.")] = "",
    build_cache: BuildCache = None,
    max_drop: Annotated[
        float | None,
        typer.Option(
            help="Largest allowed loss of the task metric, in points: keeps as few nodes float as this limit allows."
        ),
    ] = None,
    min_sqnr: Annotated[
        float | None,
        typer.Option(help="Smallest allowed SQNR, in dB: keeps as few nodes float as this limit allows."),
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            help="Exit with 1 at this severity or verdict, or a worse one: error, warning, info, bad, doubtful.",
            autocompletion=lambda: ["error", "warning", "info", "bad", "doubtful", "never"],
        ),
    ] = None,
    fail_on_unrealised: Annotated[
        bool,
        typer.Option(
            "--fail-on-unrealised", help="Exit with 1 if a node does not run in the requested format."
        ),
    ] = False,
    device: Device = None,
    custom_ops: CustomOps = None,
    plugins: Plugins = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print report.json instead of the summary.")
    ] = False,
) -> int:
    """Run the whole pipeline: turn an ONNX model into an audited INT8 engine and a report."""
    from qdqtool.cli.options import building, fitting_recipe, is_trusted, load_recipe
    from qdqtool.cli.progress import RichProgress
    from qdqtool.cli.screen import stderr, stdout
    from qdqtool.cli.verdict import check_limit, exit_code
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.pipeline.recipes import names_code
    from qdqtool.pipeline.request import RunRequest
    from qdqtool.pipeline.search import limited_run
    from qdqtool.pipeline.third_party import QDQ_LINE, course_of
    from qdqtool.pipeline.torch_models import as_onnx, name_of

    if fail_on is not None:
        check_limit(fail_on, judged=True)
    shapes = (min_shapes, opt_shapes, max_shapes)
    engine = building(target=target, sm=sm, builder=builder, shapes=shapes)
    operators = for_operators(custom_ops, plugins)
    typed = [*engine, *for_device(device), *operators]
    typed += [f"accuracy.max_drop={max_drop}"] if max_drop is not None else []
    typed += [f"accuracy.min_sqnr={min_sqnr}"] if min_sqnr is not None else []
    typed += [f"audit.fail_on={fail_on}"] if fail_on else []
    typed += ["audit.fail_on_unrealised=true"] if fail_on_unrealised else []
    folder = out or Path("runs") / name_of(model)
    source = as_onnx(model, folder, trust=is_trusted())
    settings = [*for_preset(preprocess), *(changes or ()), *typed]
    brought = None
    if calibration_cache is not None:
        method = load_recipe(recipe or "third-party-qdq", settings, labels=labels)
    else:
        opened = cache(partial(load, source))
        _, method = fitting_recipe(recipe, opened, settings, labels=labels)
        brought = opened()
    request = RunRequest(
        model=source,
        brought=brought,
        recipe=method,
        samples=samples or _RANDOM,
        eval_samples=eval_samples,
        labels=labels,
        out=folder,
        cache=build_cache,
        calibration_cache=calibration_cache,
        reference=reference,
    )
    course = course_of(request)
    is_quantized = course is QDQ_LINE
    if samples is None:
        stderr().print(_RANDOM_QDQ if is_quantized else _RANDOM_FLOAT, style="yellow")
    with RichProgress() as progress:
        report = limited_run.run(request, progress, course=course)
    if as_json:
        sys.stdout.write((request.out / "report.json").read_text("utf-8"))
    else:
        from qdqtool.cli.next_commands import next_commands
        from qdqtool.report import terminal

        terminal.render(report, stdout(), model=str(model), run=str(request.out))
        stdout().print(f"page: {request.out / 'report.html'}")
        stdout().print("next:")
        changed = [
            *(["--recipe", recipe] if recipe else []),
            *(["--preprocess", preprocess] if preprocess else []),
            *(["--device", device] if device else []),
            *(["--trust"] if recipe and is_trusted() and names_code(method) else []),
            *(f"--set={change}" for change in (*(changes or ()), *engine, *operators)),
        ]
        for line in next_commands(
            request, report, changed, has_samples=samples is not None, is_quantized=is_quantized
        ):
            stdout().print(f"  {line}")
    return exit_code(report, request.recipe)


PLUGIN = run
