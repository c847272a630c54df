"""First and last layers can be kept float: they are often the most sensitive.

    place:
      first_layer: float     the weighted nodes that read a model input, with no weighted node before them
      last_layer: float      the weighted nodes that no weighted node follows on the way to an output

A model with several inputs or heads has several of each. A convolution of what a softmax gives is no layer that follows: it sums
up the expected value of a distribution, with the numbers of its places as weights, as the boxes of YOLOv8 are made ("distribution focal
loss", Li et al., NeurIPS 2020). The layers in front of the softmax are the last ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import setting
from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import compute_nodes, veto
from qdqtool.matching.rule import Rule
from qdqtool.trt.ops import CONVOLUTIONS, LAYOUT, PRODUCTS


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
        before = _reached(view.nodes[::-1], backward=True, summing=_expected_values(view))
        for node in compute_nodes(view):
            if node.name not in before:
                yield from veto(
                    node,
                    "it is a last weighted layer, and place.last_layer is float",
                    setting("place.last_layer", "int8"),
                )


def _expected_values(view: GraphView) -> frozenset[str]:
    """Names of the convolutions that read what a softmax gives."""
    found = []
    for node in view.nodes:
        if node.op in CONVOLUTIONS:
            maker = view.producer(node.inputs[0])
            while maker is not None and maker.op in LAYOUT:
                maker = view.producer(maker.inputs[0])
            if maker is not None and maker.op == "Softmax":
                found.append(node.name)
    return frozenset(found)


def _reached(
    nodes: tuple[Node, ...], *, backward: bool, summing: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Names of nodes with a weighted node before them (or behind them, for nodes in reverse order), `summing` ones left out."""
    marked: set[str] = set()
    reached: set[str] = set()
    for node in nodes:
        sources, results = (node.outputs, node.inputs) if backward else (node.inputs, node.outputs)
        if not marked.isdisjoint(sources):
            reached.add(node.name)
        if node.name in reached or (node.op in PRODUCTS and node.name not in summing):
            marked.update(name for name in results if name)
    return frozenset(reached)


PLUGIN = Rule(code="QDQ167", place=place)
