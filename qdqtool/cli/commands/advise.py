"""Say whether INT8 is worth it for a float network on a GPU, before anything is quantized.

Shows FP32, FP16, INT8, FP8 and a mixture, sorted by their expected time relative to FP16. The ratio of INT8 comes from
published times of other networks on GPUs of the same generation; four of five such ratios are inside the interval.
"cannot say" means that the difference is below 5 %, or that no times were published. The table shows what limits each
compute node in FP16 (arithmetic, memory, or launches, estimated by a roofline), and which nodes are faster in INT8.

    qdqtool advise model.onnx --device-name "RTX 4090"
    qdqtool advise model.onnx --device-name "Orin Nano Super" --batch 8

This is an estimate. `qdqtool time` measures on the GPU of this machine, `qdqtool sweep --export` on another machine.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from qdqtool.engine.worth import PrecisionAdvice

_SHOWN = 15
"""Number of nodes in the table, half a terminal; --json lists them all."""


def advise(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    device_name: Annotated[
        str, typer.Option(help='GPU to estimate for: "RTX 4090", T4, or the metadata JSON of a trtexec run.')
    ],
    batch: Annotated[int, typer.Option(min=1, help="Batch size, if it is dynamic in the model.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the advice as JSON.")] = False,
) -> None:
    """Estimate whether INT8 makes a float network faster on a GPU, without building an engine."""
    from qdqtool.engine.roofline import find_device
    from qdqtool.engine.worth import ADVICE
    from qdqtool.engine.worth import advise as ask
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.graph.qdq.insert import refuse_quantized

    device = find_device(device_name)
    network = load(model)
    refuse_quantized(network)
    advice = ask(network.view, device, model.name, batch)
    if as_json:
        sys.stdout.write(ADVICE.dump(advice))
    else:
        _show(advice)


def _show(advice: PrecisionAdvice) -> None:
    from rich.table import Table

    from qdqtool.cli.screen import escape_markup, readable, show_table, stderr, stdout

    stdout().print(f"{advice.model} on {advice.device}, batch {advice.batch}: {advice.gmacs:.3g} GMACs")
    table = Table("precision", "against FP16", "time", "why", box=None, pad_edge=False)
    for option in advice.options:
        table.add_row(option.precision.upper(), option.words, option.times, escape_markup(option.why))
    show_table(table)
    shares = ", ".join(f"{bound} {100 * share:.0f} %" for bound, share in advice.bounds.items())
    stdout().print(f"\nbound of the compute nodes in FP16, by time [estimated]: {shares}")
    nodes = Table(box=None, pad_edge=False)
    for title in ("node", "op", "bound", "FP16 ms", "INT8 ms", "INT8 pays"):
        nodes.add_column(title, justify="right" if title.endswith("ms") else "left")
    for work in advice.nodes[:_SHOWN]:
        times = (f"{work.fp16_ms:.4f}", f"{work.int8_ms:.4f}")
        nodes.add_row(
            escape_markup(readable(work.node)), work.op, work.bound, *times, "yes" if work.pays else "no"
        )
    show_table(nodes)
    hidden = len(advice.nodes) - _SHOWN
    if hidden > 0:
        stdout().print(f"and {hidden} more; --json lists all")
    for note in advice.notes:
        stderr().print(f"note: {note}")


PLUGIN = advise
