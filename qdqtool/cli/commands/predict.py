"""Predict the precision of each node of a Q/DQ model in TensorRT.

The precision of each node is predicted from rules. For TensorRT for RTX the model is also built, which takes seconds
and needs no GPU: kernels, layers, and what happens to every Q and DQ, come from this engine. `--no-build` skips the
build; then the number of kernels is unknown. If the builder refuses the model, the exit code is 4. For classic TensorRT, whose builder needs a GPU, layers are predicted too.

Shows the counts, the compute nodes that run in float, and the Q and DQ nodes that need a kernel. `--all` shows every
node with its layer, and every Q and DQ: moved, fused into a layer, folded, merged, or left as a kernel.

    qdqtool predict model.qdq.onnx --all
    qdqtool predict model.qdq.onnx --target 10.13
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.cli.options import TARGET_HELP, BuildCache, asked_target, comma_words
from qdqtool.core.wording import count_noun

if TYPE_CHECKING:
    from rich.table import Table

    from qdqtool.core.prediction import Prediction


def predict(
    model: Annotated[Path, typer.Argument(help="ONNX model with Q/DQ nodes.")],
    target: Annotated[str, typer.Option(help=TARGET_HELP)] = "rtx",
    sm: Annotated[
        list[str] | None, typer.Option(help="GPU architectures that will run the model: 86 or 86,120.")
    ] = None,
    old_target: Annotated[str | None, typer.Option("--profile", hidden=True)] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Print every compute node, and the predicted end of every Q and DQ.")
    ] = False,
    is_built: Annotated[
        bool, typer.Option("--build/--no-build", help="Also build with TensorRT for RTX, to count kernels.")
    ] = True,
    build_cache: BuildCache = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Predict the precision of each node of a Q/DQ model in TensorRT."""
    from qdqtool.cli.progress import Bars
    from qdqtool.core.kinds import PREDICTION
    from qdqtool.errors import BuildError
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.pipeline.building import predict_built
    from qdqtool.prediction.predict import predict as predict_from_rules

    builder = asked_target(target, old_target, "--profile", comma_words(sm))
    if not is_built:
        prediction = predict_from_rules(load(model), builder)
    else:
        with Bars() as bars:
            prediction = predict_built(model, builder, cache=build_cache, on_progress=bars.show_build)
    if json:
        sys.stdout.write(PREDICTION.dump(prediction))
    else:
        _show(prediction, everything=everything)
    if prediction.refused:
        raise BuildError(prediction.refused, fix=prediction.fix, where=str(model))


def _show(prediction: Prediction, *, everything: bool) -> None:
    from qdqtool.cli.screen import readable, show_table, stdout

    for table in (_nodes, _fates) if everything else (_floats, _kernels):
        if (shown := table(prediction)).rows:
            show_table(shown)
            stdout().print()
    for line in _summary(prediction):
        stdout().print(readable(line))


def _floats(prediction: Prediction) -> Table:
    """Return a table of the compute nodes that will not run in a quantized format."""
    from rich.table import Table

    from qdqtool.cli.screen import escape_markup

    table = Table("float node", "op", "precision", "why", box=None)
    for node in prediction.nodes:
        if node.compute and node.realised == "float":
            table.add_row(
                escape_markup(node.node), node.op, f"[yellow]{node.precision}[/]", escape_markup(node.reason)
            )
    return table


def _kernels(prediction: Prediction) -> Table:
    """Return a table of the Q and DQ nodes that will be separate kernels."""
    from rich.table import Table

    from qdqtool.cli.screen import escape_markup

    table = Table("left as a kernel", "why, or which kernel", box=None)
    for row in prediction.ledger:
        if row.end.value == "runtime-copy":
            table.add_row(
                escape_markup(row.node), escape_markup(row.steps[-2].what if len(row.steps) > 1 else row.into)
            )
    return table


def _nodes(prediction: Prediction) -> Table:
    from rich.table import Table

    from qdqtool.cli.screen import escape_markup

    table = Table("node", "op", "precision", "why", "in one layer with", box=None)
    members = {layer.name: layer.nodes for layer in prediction.layers}
    for node in prediction.nodes:
        if node.compute:
            style = "yellow" if node.realised == "float" else "green"
            neighbours = [name for name in members.get(node.layer, ()) if name != node.node]
            table.add_row(
                escape_markup(node.node),
                node.op,
                f"[{style}]{node.precision}[/]",
                escape_markup(node.reason),
                escape_markup(", ".join(neighbours)),
            )
    return table


def _fates(prediction: Prediction) -> Table:
    from rich.table import Table

    from qdqtool.cli.screen import escape_markup

    table = Table("Q or DQ", "fate", "into", box=None)
    for row in prediction.ledger:
        table.add_row(escape_markup(row.node), row.end.value, escape_markup(row.into))
    return table


def _summary(prediction: Prediction) -> list[str]:
    from collections import Counter

    compute = [node for node in prediction.nodes if node.compute]
    formats = Counter(node.realised for node in compute if node.realised != "float") or {"int8": 0}
    chosen = ", ".join(
        f"{count} of {len(compute)} in {name.upper()}" for name, count in sorted(formats.items())
    )
    ends = Counter(row.end.value for row in prediction.ledger)
    fates = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    return [
        *(f"note: {note}" for note in prediction.notes),
        f"compute nodes: {chosen}; {_count(prediction)}",
        *([f"{len(prediction.ledger)} Q and DQ: {fates}"] if fates else []),
    ]


def _count(prediction: Prediction) -> str:
    """Return the number of kernels (for classic TensorRT, of layers), and the source of this number."""
    if prediction.exact:
        return f"{count_noun(prediction.kernels or 0, 'kernel')} (built with TensorRT for RTX)"
    if prediction.kernels is None:
        return "number of kernels unknown, since nothing was built (predicted for TensorRT for RTX)"
    return f"about {count_noun(prediction.kernels, 'layer')} (predicted for classic TensorRT)"


PLUGIN = predict
