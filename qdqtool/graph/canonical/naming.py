"""Gives every node a unique name that depends on the model alone."""

from __future__ import annotations

from collections.abc import Container, Iterable

import onnx


def name_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    """Name unnamed nodes and number repeated names; return how many changed.

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
        base = node.name or f"node_of_{next(filter(None, node.output), node.op_type)}"
        node.name = unique(base, taken)
        taken.add(node.name)
        seen.add(node.name)
        changed += 1
    return changed


class TakenNames:
    """Used names; finds new ones in constant time."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def take(self, base: str) -> str:
        """Return `base`, or the first free name of `base_2`, `base_3`, ...; marks it as used."""
        name, number = base, self._next.get(base, 2)
        while name in self._taken:
            name = f"{base}_{number}"
            number += 1
        self._next[base] = number
        self._taken.add(name)
        return name


def unique(base: str, taken: Container[str]) -> str:
    """Return `base`, or the first free name of `base_2`, `base_3`, ..."""
    if base not in taken:
        return base
    number = 2
    while f"{base}_{number}" in taken:
        number += 1
    return f"{base}_{number}"
