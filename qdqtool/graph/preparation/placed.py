"""Prepares a float model as it was prepared when a placement was made, whatever the recipe at hand says.

What preparation rewrites depends on builder and formats. A placement may come from another recipe than the one that a later
command is given, and its slots mean the model that it saw.
"""

from __future__ import annotations

from itertools import product

from qdqtool.core.placement import Placement
from qdqtool.core.recipe import PrepareOptions
from qdqtool.graph.model import Model
from qdqtool.graph.preparation.prepare import prepare


def prepare_as_placed(model: Model, options: PrepareOptions, placement: Placement) -> Model:
    """`model` prepared with `options`, or with the first other rewriting that gives what the placement decides about.

    Where none does, the model is prepared as `options` say, and whatever reads the placement tells what is missing.
    """
    first = prepare(model, options)
    if _fits(placement, first):
        return first
    for flatten, strided in product((False, True), repeat=2):
        chosen = {"flatten": flatten, "strided_conv_transpose": strided}
        other = prepare(model, options.model_copy(update=chosen))
        if _fits(placement, other):
            return other
    return first


def _fits(placement: Placement, model: Model) -> bool:
    """Whether every slot of a placement is there, at the same operator, and reads the same tensor."""
    nodes = model.view.by_name
    for decision in placement.decisions:
        node, index = nodes.get(decision.slot.node), decision.slot.index
        if node is None or node.op != decision.op or node.inputs[index : index + 1] != (decision.tensor,):
            return False
    return True
