"""Puts nodes in topological order and proves that every tensor has one maker."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from pathlib import Path

import onnx

from qdqtool.errors import InputFileError
from qdqtool.graph.walk import reads


def sort(nodes: Sequence[onnx.NodeProto], given: Iterable[str], path: Path) -> list[onnx.NodeProto]:
    """The nodes in topological order, as near to their old order as that allows.

    `given` are the tensors that need no node: inputs and initializers.

    Raises:
        InputFileError: a tensor is made twice or by nobody, or nodes wait for each other.
    """
    known = set(given)
    maker = _makers(nodes, known, path)
    needs = [{maker[name] for name in reads(node) if name in maker} for node in nodes]
    for node in nodes:
        for name in reads(node):
            if name not in known and name not in maker:
                raise InputFileError(
                    f"node {node.name!r} reads {name!r}, which nothing makes",
                    fix="export the model again",
                    where=str(path),
                )
    waiters: dict[int, list[int]] = {}
    for position, makers in enumerate(needs):
        for before in makers:
            waiters.setdefault(before, []).append(position)
    ready = [position for position, makers in enumerate(needs) if not makers]
    heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for waiter in waiters.get(order[-1], ()):
            needs[waiter].discard(order[-1])
            if not needs[waiter]:
                heappush(ready, waiter)
    if len(order) < len(nodes):
        stuck = next(nodes[position].name for position, makers in enumerate(needs) if makers)
        raise InputFileError(
            f"{len(nodes) - len(order)} nodes wait for each other in a cycle, among them {stuck!r}",
            fix="export the model again: an ONNX graph has no cycles",
            where=str(path),
        )
    return [nodes[position] for position in order]


def _makers(nodes: Sequence[onnx.NodeProto], given: set[str], path: Path) -> dict[str, int]:
    """Which node makes which tensor, by position."""
    maker: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for output in node.output:
            if not output:
                continue
            if output in maker or output in given:
                raise InputFileError(
                    f"tensor {output!r} is made twice, the second time by node {node.name!r}",
                    fix="export the model again",
                    where=str(path),
                )
            maker[output] = position
    return maker
