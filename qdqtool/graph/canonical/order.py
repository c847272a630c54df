"""Sorts nodes topologically, and checks that every tensor has exactly one producer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.walk import reads

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
