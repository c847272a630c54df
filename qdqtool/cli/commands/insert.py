"""Write the Q/DQ model that a placement and a calibration table describe.

The pairs are what TensorRT accepts and fuses: symmetric INT8 with zero point 0, one scalar scale per activation, one
scale per output channel for weights, a pair of its own for every consumer, and a float bias.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def insert(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    placement: Annotated[Path, typer.Option(help="placement.json, written by `qdqtool place`.")],
    calibration: Annotated[Path, typer.Option(help="calibration.json, written by `qdqtool calibrate`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Q/DQ model to write.")],
    recipe: Annotated[str | None, typer.Option(help="Shipped recipe or .yaml file.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one value of the recipe.")
    ] = None,
    types: Annotated[str | None, typer.Option(help="Type of the float rest: fp32 or fp16.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="qdq: float weights behind Q and DQ; int8: DQ only.")
    ] = None,
) -> None:
    """Write the Q/DQ model that a placement and a calibration table describe."""
    from qdqtool.cli.screen import stderr
    from qdqtool.core.kinds import CALIBRATION, PLACEMENT
    from qdqtool.graph.insert import insert as insert_pairs
    from qdqtool.graph.load import load
    from qdqtool.graph.prepare import prepare
    from qdqtool.graph.save import save
    from qdqtool.workflows import recipes

    typed = {"insert.types": types, "insert.weights": weights}
    chosen = recipes.load(
        recipe, [*(changes or []), *(f"{key}={value}" for key, value in typed.items() if value)]
    )
    ready = prepare(load(model), chosen.prepare)
    result = insert_pairs(ready, PLACEMENT.read(placement), CALIBRATION.read(calibration), chosen.insert)
    save(result, out)
    for note in result.notes:
        stderr().print(f"note: {note}", markup=False, highlight=False)
    stderr().print(f"wrote {out}", markup=False, highlight=False)


PLUGIN = insert
