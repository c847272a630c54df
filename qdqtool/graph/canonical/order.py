"""Inlines local functions, sorts nodes topologically, and checks that every tensor has exactly one producer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx

from qdqtool.errors import InputFileError
from qdqtool.graph.onnx_io.passes import PassExceeded, PassRefused, run_pass
from qdqtool.graph.onnx_io.walk import bodies, parts, reads, restore, skeleton

# --- naming ----------------------------------------------------------------------------------------------------------
# Gives every node a unique name that depends on the model alone.


def name_nodes(nodes: Iterable[onnx.NodeProto]) -> int:
    """Name unnamed nodes and number repeated names; return how many changed.

    Nodes without a name are called `node_of_<first output>`, as TensorRT's parser calls them in logs and layer
    information, so that an engine built from the file itself can be joined with the model.
    """
    nodes = tuple(nodes)
    taken = {node.name for node in nodes if node.name}
    names: set[str] = set()
    changed = 0
    for node in nodes:
        if node.name and node.name not in names:
            names.add(node.name)
            continue
        base = node.name or f"node_of_{next(filter(None, node.output), node.op_type)}"
        node.name = unique(base, taken)
        taken.add(node.name)
        names.add(node.name)
        changed += 1
    return changed


class TakenNames:
    """Names that a graph already uses; returns new names in constant time."""

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


def sort(nodes: Sequence[onnx.NodeProto], inputs: Iterable[str], path: Path) -> list[onnx.NodeProto]:
    """Return the nodes in topological order. Each node keeps its place; a late producer moves directly before its first consumer.

    `inputs` are the tensors that need no node: inputs and initializers.

    Raises:
        InputFileError: a tensor is produced twice or not at all, or nodes form a cycle.
    """
    available = set(inputs)
    maker = _makers(nodes, available, path)
    needs = [_needs(node, maker, available, path) for node in nodes]
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


def _needs(node: onnx.NodeProto, maker: dict[str, int], inputs: set[str], path: Path) -> tuple[int, ...]:
    """Return the positions of the nodes that feed a node, in the order of its inputs."""
    names = tuple(dict.fromkeys(reads(node)))
    for name in names:
        if name not in inputs and name not in maker:
            raise InputFileError(
                f"node {node.name!r} reads {name!r}, which no node produces", fix=_FIX, where=str(path)
            )
    return tuple(dict.fromkeys(maker[name] for name in names if name in maker))


def _makers(nodes: Sequence[onnx.NodeProto], inputs: set[str], path: Path) -> dict[str, int]:
    """Return the position of the node that makes each tensor."""
    maker: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for output in node.output:
            if output and (output in maker or output in inputs):
                problem = f"tensor {output!r} is produced twice, the second time by node {node.name!r}"
                raise InputFileError(problem, fix=_FIX, where=str(path))
            if output:
                maker[output] = position
    return maker


def _cycle(node: onnx.NodeProto, path: Path) -> InputFileError:
    problem = f"nodes depend on each other in a cycle, among them {node.name!r}"
    return InputFileError(problem, fix=f"{_FIX}: an ONNX graph has no cycles", where=str(path))


# --- functions -------------------------------------------------------------------------------------------------------
# Inlines the local functions of a model, so that every node is an operator.


_DEEPEST = 200
"""Most functions that call each other. Real exports nest fewer than ten; a native inliner can exhaust its stack."""
_MOST = 1_000_000
"""Most nodes after inlining; functions that call others twice double the number at every level."""
_Name = tuple[str, str, str]
"""Domain, operator type and overload."""


def inline_functions(proto: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """Return the model without local functions, except those of plug-ins, whose calls stay nodes.

    Raises:
        InputFileError: a function calls itself, they are nested too deeply or would fill the memory, or one does not
            fit its calls.
    """
    trouble = _trouble(proto)
    if trouble:
        raise _refuse_model(trouble, path)
    kept = [entry for entry in proto.functions if defines_plugin(entry)]
    try:
        light, heavy = skeleton(proto)
        if kept:
            del light.functions[:]
            light.functions.extend(entry for entry in proto.functions if not defines_plugin(entry))
            result = onnx.ModelProto.FromString(run_pass("inline", light)) if light.functions else light
            result.functions.extend(kept)
            return restore(result, heavy)
        return restore(onnx.ModelProto.FromString(run_pass("inline", light)), heavy)
    except (PassRefused, PassExceeded) as error:
        raise _refuse_model(str(error), path) from error


_PLUGIN_NAME = re.compile(r"(_TRT|Plugin)$|^TRT_")
_PLUGIN_DOMAIN = re.compile(r"^trt\.|plugin|tensorrt", re.IGNORECASE)


def defines_plugin(entry: onnx.FunctionProto) -> bool:
    """Return True if a function defines an operator of a TensorRT plug-in, by its name or domain.

    TensorRT 10.7 and newer take the plug-in if it is registered, and the function if not. So the call stays a node, and onnxruntime
    computes it from the function.
    """
    return bool(_PLUGIN_NAME.search(entry.name) or _PLUGIN_DOMAIN.search(entry.domain))


def _trouble(proto: onnx.ModelProto) -> str:
    """Return the reason why local functions cannot be inlined; "" if they can.

    Onnx itself may crash or never end on such functions.
    """
    calls = {
        (entry.domain, entry.name, entry.overload): Counter(_list_called(entry.node))
        for entry in proto.functions
    }
    graph = {name: inner.keys() & calls.keys() for name, inner in calls.items()}
    try:
        order = tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        domain, name, _ = error.args[1][0]
        return f"{domain}.{name} is recursive"
    depth: dict[_Name, int] = {}
    size: dict[_Name, int] = {}
    for name in order:
        depth[name] = 1 + max((depth[inner] for inner in graph[name]), default=0)
        size[name] = _size(calls[name], size)
    if max(depth.values(), default=0) > _DEEPEST:
        return f"they are nested {max(depth.values())} deep"
    whole = _size(Counter(_list_called(proto.graph.node)), size)
    return f"they would become {whole:.3g} nodes" if whole > _MOST else ""


def _size(calls: Counter[_Name], size: dict[_Name, int]) -> int:
    """Return the number of nodes after all calls are inlined: `size` per function, 1 per other operator."""
    return sum(count * size.get(name, 1) for name, count in calls.items())


def with_defaults(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with every default attribute written into the calls, because onnx's inliner ignores defaults."""
    defaults = {
        (entry.domain, entry.name, entry.overload): entry.attribute_proto
        for entry in proto.functions
        if entry.attribute_proto
    }
    nodes = (part for part in parts(proto) if isinstance(part, onnx.NodeProto)) if defaults else ()
    for node in nodes:
        present = {attribute.name for attribute in node.attribute}
        own = defaults.get((node.domain, node.op_type, node.overload), ())
        node.attribute.extend(attribute for attribute in own if attribute.name not in present)
    return proto


def _list_called(nodes: Iterable[onnx.NodeProto]) -> Iterator[_Name]:
    for node in nodes:
        yield node.domain, node.op_type, node.overload
        for body in bodies(node):
            yield from _list_called(body.node)


def _refuse_model(why: str, path: Path) -> InputFileError:
    return InputFileError(
        f"the model has local functions that cannot be inlined: {why}",
        fix="export without functions",
        where=str(path),
    )
