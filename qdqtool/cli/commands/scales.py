"""Read the scales of a Q/DQ model back: per node and module, and as a calibration table of its float model.

Reads models of every tool: pytorch-quantization, modelopt, PT2E, TensorFlow QAT, onnxruntime, quark, qdqtool. `--out`
writes the ranges as a calibration.json, and `--model` writes the float model they belong to. Then `qdqtool place` and
`qdqtool insert` can quantize the model again with the trained scales.

    qdqtool scales model.qdq.onnx
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.core.wording import count_noun

if TYPE_CHECKING:
    from rich.table import Table

    from qdqtool.core.calibration import ReadBack


def scales(
    model: Annotated[Path, typer.Argument(help="ONNX model with Q/DQ or integer operators.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="calibration.json to write.")] = None,
    plain: Annotated[
        Path | None, typer.Option("--model", "-m", help="Float model to write, without any Q/DQ.")
    ] = None,
    match: Annotated[
        str, typer.Option(help="Print only nodes or modules whose name matches this glob pattern.")
    ] = "*",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Read the scales that a Q/DQ model stores: per node and module, and as a calibration table."""
    from qdqtool.cli.screen import show_table, stderr, stdout
    from qdqtool.core.kinds import CALIBRATION, READBACK
    from qdqtool.pipeline.readback import read_back
    from qdqtool.pipeline.writing import write

    readback, reference = read_back(model)
    if plain is not None:
        write(reference, plain, step="scales")
    if out is not None:
        CALIBRATION.write(out, readback.table)
    for path in filter(None, (plain, out)):
        stderr().print(f"wrote {path}")
    if as_json:
        sys.stdout.write(READBACK.dump(readback))
        return
    show_table(_table(readback, match), spare=("module", "zero point", "tensor"))
    summary = f"{count_noun(len(readback.scales), 'quantized input')}, {count_noun(len(readback.table.ranges), 'tensor')}"
    lines = (
        f"{summary}; quantized by {readback.origin or 'an unknown tool'}",
        *(f"note: {note}" for note in readback.notes),
    )
    for line in lines:
        stdout().print(line)


def _table(readback: ReadBack, match: str) -> Table:
    from fnmatch import fnmatchcase

    from rich.table import Table

    from qdqtool.cli.screen import escape_markup

    table = Table(
        "module", "node", "input", "type", "scale", "zero point", "tensor", box=None, pad_edge=False
    )
    for entry in readback.scales:
        if not (fnmatchcase(entry.module, match) or fnmatchcase(entry.slot.node, match)):
            continue
        low, high = min(entry.scale), max(entry.scale)
        scale = f"{low:.6g}" if len(entry.scale) == 1 else f"{low:.3g}..{high:.3g} ({len(entry.scale)})"
        zero = ", ".join(str(value) for value in sorted(set(entry.zero_point))[:3])
        cells = (
            entry.module,
            entry.slot.node,
            str(entry.slot.index),
            entry.dtype.value,
            scale,
            zero,
            entry.tensor,
        )
        table.add_row(*map(escape_markup, cells))
    return table


PLUGIN = scales
