"""Quantization-aware training of a PyTorch network: from calibrated ranges to an audited engine.

The recipe's section `qat` names two functions. `qat.model` returns the trained float network. `qat.data` gets the name
of a split ("train", "validate", "test") and returns its samples: a pair (inputs, targets) of arrays, a dataset of
pairs, or an iterable of batches. Relative paths start at the recipe's folder.

The steps are those of `qdqtool.qat` in your own training loop: the network gets quantizers at the inputs that
placement chose, the quantizers start from calibrated ranges (`calibrated.onnx`), the network is trained, and
`trained.onnx` is written. Both Q/DQ models are then linted, built, audited and compared with the float network in the
run folders `ptq` and `qat`. If it is stopped, the same command continues from the last finished epoch.

    qdqtool qat run qat-digits --out runs/qat
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from qdqtool.cli.options import BuildCache

PLUGIN = typer.Typer(no_args_is_help=True, help="Quantization-aware training of a PyTorch network.")


@PLUGIN.callback()
def qat() -> None:
    """Quantization-aware training of a PyTorch network."""


@PLUGIN.command()
def run(
    recipe: Annotated[str, typer.Argument(help="Shipped recipe, or .yaml file with a section `qat`.")],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="Folder for checkpoints and for the runs before and after training."
        ),
    ],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one value of the recipe: qat.epochs=5.")
    ] = None,
    build_cache: BuildCache = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print qat.json instead of the table.")] = False,
) -> None:
    """Fine-tune with quantizers at the inputs that placement chose, then export, build, audit and compare."""
    from qdqtool.cli.options import load_recipe
    from qdqtool.cli.progress import RichProgress
    from qdqtool.cli.screen import show_table, stdout
    from qdqtool.pipeline import recipes
    from qdqtool.pipeline.qat.run import QatRequest
    from qdqtool.pipeline.qat.run import run as train
    from qdqtool.report import terminal

    request = QatRequest(
        recipe=load_recipe(recipe, changes),
        beside=recipes.locate(recipe).parent,
        out=out,
        cache=build_cache,
    )
    with RichProgress() as narrator:
        result = train(request, narrator)
    if as_json:
        sys.stdout.write((out / "qat.json").read_text("utf-8"))
        return
    show_table(terminal.table(result))
    for sentence in terminal.notes(result):
        stdout().print(sentence)
    for name in ("ptq", "qat"):
        stdout().print(f"page: {out / name / 'report.html'}")
