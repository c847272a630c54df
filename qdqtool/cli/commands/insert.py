"""Write the Q/DQ model that a placement and a calibration table describe.

TensorRT accepts and fuses these pairs: symmetric INT8 with zero point 0, one scalar scale per activation, one scale
per output channel for weights, a separate pair for every consumer, and a float bias.

With --types fp16 or bf16 the float nodes change their type too, as in `qdqtool convert`; --samples then finds the nodes
that overflow.

    qdqtool insert model.onnx --placement placement.json --calibration table.json --out model.qdq.onnx
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qdqtool.cli.options import Changes, RecipeName
from qdqtool.core.wording import Command


def insert(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    placement: Annotated[Path, typer.Option(help=f"placement.json, written by {Command('place')}.")],
    calibration: Annotated[Path, typer.Option(help=f"calibration.json, written by {Command('calibrate')}.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Q/DQ model to write.")],
    recipe: RecipeName = None,
    changes: Changes = None,
    types: Annotated[
        str | None, typer.Option(help="Type of the nodes that are not quantized: fp32, fp16 or bf16.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            help="How weights are stored: qdq = float weights with Q and DQ, int8 = INT8 weights with DQ only."
        ),
    ] = None,
    samples: Annotated[
        str, typer.Option(help="With --types fp16: samples that show which nodes overflow.")
    ] = "",
) -> None:
    """Write the Q/DQ model that a placement and a calibration table describe."""
    from qdqtool.cli.options import load_recipe
    from qdqtool.cli.screen import stderr
    from qdqtool.core.kinds import CALIBRATION
    from qdqtool.pipeline.quantization import QuantizationJob
    from qdqtool.pipeline.writing import write

    typed = {"insert.types": types, "insert.weights": weights}
    chosen = load_recipe(
        recipe, [*(changes or []), *(f"{key}={value}" for key, value in typed.items() if value)]
    )
    work = QuantizationJob(model, chosen, samples, placement)
    result = work.inserted(CALIBRATION.read(calibration))
    write(result, out, step="insert")
    for note in result.notes:
        stderr().print(f"note: {note}")
    stderr().print(f"wrote {out}")


PLUGIN = insert
