"""First and last layers can be kept float: they are often the most sensitive.

    place:
      first_layer: float     the weighted nodes that read a model input, with no weighted node before them
      last_layer: float      the weighted nodes that no weighted node follows on the way to an output

A model with several inputs or heads has several of each.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import setting
from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import compute_nodes, veto
from qdqtool.matching.rule import Rule
from qdqtool.trt.ops import PRODUCTS


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto the ends that the recipe keeps float."""
    if options.first_layer == "float":
        after = _reached(view.nodes, backward=False)
        for node in compute_nodes(view):
            if node.name not in after:
                yield from veto(
                    node,
                    "it is a first weighted layer, and place.first_layer is float",
                    setting("place.first_layer", "int8"),
                )
    if options.last_layer == "float":
        before = _reached(view.nodes[::-1], backward=True)
        for node in compute_nodes(view):
            if node.name not in before:
                yield from veto(
                    node,
                    "it is a last weighted layer, and place.last_layer is float",
                    setting("place.last_layer", "int8"),
                )


def _reached(nodes: tuple[Node, ...], *, backward: bool) -> frozenset[str]:
    """Names of nodes with a weighted node before them (or behind them, for nodes in reverse order)."""
    marked: set[str] = set()
    reached: set[str] = set()
    for node in nodes:
        sources, results = (node.outputs, node.inputs) if backward else (node.inputs, node.outputs)
        if not marked.isdisjoint(sources):
            reached.add(node.name)
        if node.name in reached or node.op in PRODUCTS:
            marked.update(name for name in results if name)
    return frozenset(reached)


PLUGIN = Rule(code="QDQ167", place=place)
