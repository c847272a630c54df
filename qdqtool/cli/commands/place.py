"""Say where Q/DQ would go, and why; the model is not changed.

Every weighted node gets a line: what each of its inputs becomes, and every rule's reason for or against. Tensors
that share one scale are listed behind. `qdqtool explain RULE` prints what a rule wants and on what evidence.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from qdqtool.core.placement import Decision, Placement


def place(
    model: Annotated[Path, typer.Argument(help="Float ONNX model.")],
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="Shipped recipe or .yaml file.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one value of the recipe.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write placement.json here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print placement.json instead of the table.")] = False,
) -> None:
    """Say where Q/DQ would go, and why; the model is not changed."""
    from qdqtool.cli.screen import stderr
    from qdqtool.core.kinds import PLACEMENT
    from qdqtool.graph.load import load
    from qdqtool.graph.prepare import prepare
    from qdqtool.placement.decide import decide
    from qdqtool.workflows import recipes

    chosen = recipes.load(recipe, changes or [])
    ready = prepare(load(model), chosen.prepare)
    placement = decide(ready.view, chosen.place)
    for note in (*ready.notes, *placement.notes):
        stderr().print(f"note: {note}", markup=False, highlight=False)
    if out is not None:
        PLACEMENT.write(out, placement)
        stderr().print(f"wrote {out}", markup=False, highlight=False)
    if json:
        sys.stdout.write(PLACEMENT.dump(placement))
    else:
        _show(placement)


def _show(placement: Placement) -> None:
    from qdqtool.cli.screen import stdout

    stdout().print(_decisions(placement))
    for tie in placement.ties:
        stdout().print(f"one scale: {', '.join(tie.tensors)}", markup=False, highlight=False)
        stdout().print(f"    {tie.rule}: {tie.reason}", markup=False, highlight=False)
    stdout().print(_summary(placement), markup=False, highlight=False)


def _decisions(placement: Placement) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("node", "op", "input", "becomes", "because", box=None)
    previous = ""
    for decision in placement.decisions:
        node = decision.slot.node if decision.slot.node != previous else ""
        previous = decision.slot.node
        style = "green" if decision.quantize else "yellow"
        table.add_row(
            escape(node),
            decision.op if node else "",
            escape(f"{decision.slot.index} {decision.tensor}"),
            f"[{style}]{_becomes(decision)}[/]",
            escape("; ".join(_reasons(decision)) or "no rule asks for it"),
        )
    return table


def _becomes(decision: Decision) -> str:
    if decision.spec is None:
        return "float"
    axis = decision.spec.axis
    return str(decision.spec.dtype) if axis is None else f"{decision.spec.dtype} axis {axis}"


def _reasons(decision: Decision) -> list[str]:
    """What settled it: the requests of a quantized slot, the vetoes of a float one."""
    from qdqtool.core.placement import Stance

    stance = Stance.REQUEST if decision.quantize else Stance.VETO
    return [f"{o.rule}: {o.reason}" for o in decision.opinions if o.stance is stance]


def _summary(placement: Placement) -> str:
    nodes = {decision.slot.node for decision in placement.decisions}
    chosen = {decision.slot.node for decision in placement.quantized}
    return (
        f"{len(chosen)} of {len(nodes)} nodes in INT8, {len(placement.quantized)} Q/DQ pairs, "
        f"{len(placement.ties)} groups of tensors sharing a scale"
    )


PLUGIN = place
