"""Gives every node a name of its own that depends on nothing but the model."""

from __future__ import annotations

from collections.abc import Container, Iterable

import onnx


def name_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    """Name unnamed nodes `<op>_<output>` and number repeated names; returns how many changed."""
    nodes = tuple(nodes)
    taken = {node.name for node in nodes if node.name}
    seen: set[str] = set()
    changed = 0
    for node in nodes:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        wish = node.name or f"{node.op_type}_{next(filter(None, node.output), 'nothing')}"
        node.name = unique(wish, taken)
        taken.add(node.name)
        seen.add(node.name)
        changed += 1
    return changed


def unique(wish: str, taken: Container[str]) -> str:
    """`wish`, or `wish_2`, `wish_3`, ... whichever is free first."""
    if wish not in taken:
        return wish
    number = 2
    while f"{wish}_{number}" in taken:
        number += 1
    return f"{wish}_{number}"
