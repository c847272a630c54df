"""Gives every node a name of its own that depends on nothing but the model."""

from __future__ import annotations

from collections.abc import Container, Iterable

import onnx


def name_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    """Name unnamed nodes and number repeated names; returns how many changed.

    Nodes without a name are called `node_of_<first output>`, as TensorRT's parser calls them in logs and layer
    information, so that an engine built from the file itself can be joined with the model.
    """
    nodes = tuple(nodes)
    taken = {node.name for node in nodes if node.name}
    seen: set[str] = set()
    changed = 0
    for node in nodes:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        wish = node.name or f"node_of_{next(filter(None, node.output), node.op_type)}"
        node.name = unique(wish, taken)
        taken.add(node.name)
        seen.add(node.name)
        changed += 1
    return changed


class Names:
    """Names that are taken, and new ones in time that does not grow with their number."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def take(self, wish: str) -> str:
        """`wish`, or `wish_2`, `wish_3`, ... whichever is free first; it is taken from now on."""
        name, number = wish, self._next.get(wish, 2)
        while name in self._taken:
            name = f"{wish}_{number}"
            number += 1
        self._next[wish] = number
        self._taken.add(name)
        return name


def unique(wish: str, taken: Container[str]) -> str:
    """`wish`, or `wish_2`, `wish_3`, ... whichever is free first."""
    if wish not in taken:
        return wish
    number = 2
    while f"{wish}_{number}" in taken:
        number += 1
    return f"{wish}_{number}"
