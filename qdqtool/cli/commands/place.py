"""Show which inputs would get Q/DQ, and why; the model is not changed.

Prints one line per node with weights: which of its inputs are quantized, and the reasons. Tensors that share one scale
are listed at the end. `qdqtool explain RULE` explains a rule, with its evidence.

    qdqtool place model.onnx --recipe transformer-int8
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qdqtool.cli.options import BuilderGpus, BuilderTarget, Changes, FittingRecipe, for_builder
from qdqtool.core.wording import count_noun

if TYPE_CHECKING:
    from rich.table import Table

    from qdqtool.core.placement import Decision, Placement


def place(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    recipe: FittingRecipe = None,
    changes: Changes = None,
    target: BuilderTarget = None,
    sm: BuilderGpus = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for placement.json.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print placement.json instead of the table.")] = False,
) -> None:
    """Show which inputs would get Q/DQ, and why; the model is not changed."""
    from qdqtool.cli.options import fitting_recipe
    from qdqtool.cli.placed_words import nodes_of
    from qdqtool.cli.screen import stderr
    from qdqtool.core.kinds import PLACEMENT
    from qdqtool.graph.onnx_io.load import load
    from qdqtool.graph.preparation.prepare import prepare
    from qdqtool.matching.refused import match_refused, way_out
    from qdqtool.pipeline.recipe_mistakes import refuse_unmatched
    from qdqtool.placement.decide import decide

    _, chosen = fitting_recipe(recipe, model, [*(changes or []), *for_builder(target, sm)])
    ready = prepare(load(model), chosen.preparing)
    refuse_unmatched(chosen, ready.view, "place")
    placement = decide(ready.view, chosen.placing)
    refused = [
        f"node {node.name!r}: {reason}; {way_out(ready.view, node, str(model))}"
        for node, reason in match_refused(ready.view, chosen.placing.builder)
    ]
    for note in (*ready.notes, *placement.notes, *refused):
        stderr().print(f"note: {note}")
    if out is not None:
        PLACEMENT.write(out, placement)
        stderr().print(f"wrote {out}")
    if json:
        sys.stdout.write(PLACEMENT.dump(placement))
    else:
        _show(placement, nodes_of(ready.view, placement))


def _show(placement: Placement, nodes: str) -> None:
    from qdqtool.cli.screen import show_table, stdout

    show_table(_decisions(placement), spare=("op",))
    for tie in placement.ties:
        stdout().print(f"one scale: {', '.join(tie.tensors)}")
        stdout().print(f"    {tie.rule}: {tie.reason}")
    stdout().print(_summary(placement, nodes))


def _decisions(placement: Placement) -> Table:
    from rich.table import Table

    from qdqtool.cli.screen import escape_markup

    table = Table("node", "op", "inputs", "because", box=None)
    for node, slots in groupby(placement.decisions, key=lambda decision: decision.slot.node):
        decisions = tuple(slots)
        chosen = [decision for decision in decisions if decision.quantize]
        table.add_row(
            escape_markup(node),
            decisions[0].op,
            f"[green]{', '.join(map(_becomes, chosen))}[/]" if chosen else "[yellow]float[/]",
            escape_markup("; ".join(_reasons(chosen or decisions)) or "no rule asks to quantize this input"),
        )
    return table


def _becomes(decision: Decision) -> str:
    axis = None if decision.spec is None else decision.spec.axis
    kind = "" if decision.spec is None else str(decision.spec.format)
    return f"{decision.slot.index}: {kind}" + ("" if axis is None else f" axis {axis}")


def _reasons(decisions: Iterable[Decision]) -> list[str]:
    """Return the distinct reasons of decisions: requests for quantized inputs, vetoes for float inputs."""
    from qdqtool.core.placement import RequestOrVeto

    reasons = [
        f"{opinion.rule}: {opinion.reason}"
        for decision in decisions
        for opinion in decision.opinions
        if (opinion.stance is RequestOrVeto.REQUEST) is decision.quantize
    ]
    return list(dict.fromkeys(reasons))


def _summary(placement: Placement, nodes: str) -> str:
    from qdqtool.core.placement import SlotKind

    weights = sum(decision.kind is SlotKind.WEIGHT for decision in placement.quantized)
    return (
        f"{nodes} with Q/DQ: {len(placement.quantized) - weights} pairs on activations, "
        f"{weights} on weights, {count_noun(len(placement.ties), 'group of tensors', 'groups of tensors')} with one scale"
    )


PLUGIN = place
