"""Where the boxes and lines of a layered drawing go: top to bottom, few crossings, the same every time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import graphlay

_OPTIONS = {
    "direction": "topbottom",
    "spacing": {"layer_gap": 40.0, "node_gap": 26.0, "dummy_gap": 14.0},
}
Place = tuple[int, int]
"""x and y in pixels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """A finished drawing's geometry, moved so that it starts at (0, 0).

    Attributes:
        centres: of the boxes, in the order given.
        paths: corners of every line from border to border, in the order given.
        width: of the whole drawing in pixels.
        height: of the whole drawing.
    """

    centres: tuple[Place, ...]
    paths: tuple[tuple[Place, ...], ...]
    width: int
    height: int


def lay_out(sizes: Sequence[tuple[int, int]], edges: Sequence[tuple[int, int]]) -> Layout:
    """Places boxes of these sizes (width, height in pixels) that are joined by edges (from, to).

    Cycles, loops and separate parts are allowed. Its time grows a little faster than the number of boxes.
    """
    graph = graphlay.Graph()
    for width, height in sizes:
        graph.node(width=width, height=height)
    for source, target in edges:
        graph.edge(source, target)
    drawn = graphlay.layout(graph, options=_OPTIONS)
    low, high = drawn.bounds["min"], drawn.bounds["max"]

    def place(point: dict[str, float]) -> Place:
        return round(point["x"] - low["x"]), round(point["y"] - low["y"])

    return Layout(
        centres=tuple(place(node["center"]) for node in drawn.nodes),
        paths=tuple(tuple(place(point) for point in edge["points"]) for edge in drawn.edges),
        width=round(high["x"] - low["x"]),
        height=round(high["y"] - low["y"]),
    )
