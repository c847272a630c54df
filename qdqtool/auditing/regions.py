"""Regions that an engine compiled as one block without listing what is inside: `{ForeignNode[first...last]}`."""

from __future__ import annotations

import re

from qdqtool.core.engine import EngineLayer
from qdqtool.graph.view import GraphView, Node

_REGION = re.compile(r"\{ForeignNode\[(.+?)\.\.\.(.+?)\]\}")


def is_opaque(layer: EngineLayer) -> bool:
    """Return whether the layer is a region of kernels that are not listed."""
    return layer.kind == "Myelin" or layer.name.startswith("{ForeignNode[")


def region_around(view: GraphView, node: Node, layers: tuple[EngineLayer, ...]) -> EngineLayer | None:
    """Return the region with `node` between its first and last node in topological order; None if there is none.

    The name of a region gives its first and last node only, so this is an inference.
    """
    for layer in layers:
        found = _REGION.search(layer.name)
        ends = [_position(view, name) for name in found.groups()] if found else []
        known = [position for position in ends if position is not None]
        if len(known) == 2 and min(known) <= node.position <= max(known):
            return layer
    return None


def _position(view: GraphView, name: str) -> int | None:
    """Return the graph position of the node that `name` begins or ends with; names may be joined by ` + `."""
    nodes = (view.by_name.get(piece.strip()) for piece in (name, *name.split(" + ")))
    return next((node.position for node in nodes if node is not None), None)
