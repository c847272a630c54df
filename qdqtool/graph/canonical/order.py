"""Sorts nodes topologically, and checks that every tensor has exactly one producer."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from pathlib import Path

import onnx

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.walk import reads

# --- naming ----------------------------------------------------------------------------------------------------------
# Gives every node a unique name that depends on the model alone.


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


# --- order -----------------------------------------------------------------------------------------------------------


_FIX = "export the model again"


def sort(nodes: Sequence[onnx.NodeProto], given: Iterable[str], path: Path) -> list[onnx.NodeProto]:
    """Return the nodes in topological order. Each keeps its place; late producers move up right before their first consumer.

    `given` are the tensors that need no node: inputs and initializers.

    Raises:
        InputFileError: a tensor is produced twice or not at all, or nodes form a cycle.
    """
    known = set(given)
    maker = _makers(nodes, known, path)
    needs = [_needs(node, maker, known, path) for node in nodes]
    order: list[int] = []
    done = [False] * len(nodes)
    open_ = [False] * len(nodes)
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            position = stack[-1]
            waiting = [before for before in needs[position] if not done[before]]
            if done[position] or not waiting:
                stack.pop()
                if not done[position]:
                    done[position] = True
                    order.append(position)
                continue
            open_[position] = True
            if any(open_[before] for before in waiting):
                raise _cycle(nodes[position], path)
            stack += reversed(waiting)
    return [nodes[position] for position in order]


def _needs(node: onnx.NodeProto, maker: dict[str, int], given: set[str], path: Path) -> tuple[int, ...]:
    """Return the positions of the nodes that must come first, in the order of the inputs."""
    names = tuple(dict.fromkeys(reads(node)))
    for name in names:
        if name not in given and name not in maker:
            raise InputFileError(
                f"node {node.name!r} reads {name!r}, which no node produces", fix=_FIX, where=str(path)
            )
    return tuple(dict.fromkeys(maker[name] for name in names if name in maker))


def _makers(nodes: Sequence[onnx.NodeProto], given: set[str], path: Path) -> dict[str, int]:
    """Return the producer of each tensor, by position."""
    maker: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for output in node.output:
            if output and (output in maker or output in given):
                what = f"tensor {output!r} is produced twice, the second time by node {node.name!r}"
                raise InputFileError(what, fix=_FIX, where=str(path))
            if output:
                maker[output] = position
    return maker


def _cycle(node: onnx.NodeProto, path: Path) -> InputFileError:
    what = f"nodes depend on each other in a cycle, among them {node.name!r}"
    return InputFileError(what, fix=f"{_FIX}: an ONNX graph has no cycles", where=str(path))
