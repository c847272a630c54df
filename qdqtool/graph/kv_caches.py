"""Caches of exported decoders: model inputs whose values an output returns, together with those of the new tokens.

    past_key ──────────────┐
                           ├ Concat ─┬─ present_key (model output)
    k_proj ─ ... ─ new_key ┘         └─ Transpose ─ MatMul ─ Softmax ...

A cache is found by what it does, not by its name: between the input and the output stand only operators that move
values, and at least one of them takes in values that the network computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qdqtool.core.equivalence import classes
from qdqtool.core.placement import Slot
from qdqtool.core.tensors import DType
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import QDQ, WRITES, carried_outputs, quantization_commutes

_FLOATS = frozenset({DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16})
_STORED = frozenset({DType.INT8, DType.FLOAT8})


@dataclass(frozen=True, kw_only=True, slots=True)
class KvCache:
    """Values that an output returns, and that are fed to the model again in the next step.

    Attributes:
        inputs: model inputs that hold them.
        outputs: model outputs that hold them.
        tensors: all tensors from the inputs to the outputs, both included.
        entries: where values get in: inputs of the operators between, from model inputs and from the network.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: tuple[str, ...]
    entries: tuple[Slot, ...]


def kv_caches(view: GraphView) -> tuple[KvCache, ...]:
    """Return all float caches of a graph, in graph order; caches that share an operator count as one."""
    return _caches(view, [info.name for info in view.inputs if info.dtype in _FLOATS])


def stored_caches(view: GraphView) -> tuple[KvCache, ...]:
    """Return all caches whose inputs and outputs are low-bit; Q and DQ may be among the operators between."""
    starts = [info.name for info in view.inputs if info.dtype in _STORED]
    return _caches(view, starts) if starts else ()


def _caches(view: GraphView, starts: list[str]) -> tuple[KvCache, ...]:
    held = _leading_to_output(view, _moved(view, starts))
    links = {}
    for node in view.nodes:
        if not held.isdisjoint(node.outputs):
            slots = [Slot(node=node.name, index=index) for index in value_inputs(view, node)]
            links[node.name] = (slots, [name for name in (*node.inputs, *node.outputs) if name in held])
    found = []
    for group in classes(tensors for _, tensors in links.values()):
        inputs = tuple(name for name in starts if name in group)
        slots = [slot for own, tensors in links.values() if group.issuperset(tensors) for slot in own]
        read = [(slot, view.by_name[slot.node].inputs[slot.index]) for slot in slots]
        if all(name in group for _, name in read):
            continue  # nothing is computed: an input that is handed through
        made = (name for node in view.nodes for name in node.outputs)
        found.append(
            KvCache(
                inputs=inputs,
                outputs=tuple(info.name for info in view.outputs if info.name in group),
                tensors=(*inputs, *(name for name in made if name in group)),
                entries=tuple(slot for slot, name in read if name in inputs or name not in group),
            )
        )
    return tuple(sorted(found, key=lambda cache: view.by_name[cache.entries[0].node].position))


def value_inputs(view: GraphView, node: Node) -> tuple[int, ...]:
    """Return the numbers of the inputs whose values `node` passes on unchanged; () for operators that compute."""
    if node.op in WRITES:
        plain = node.attribute("reduction", "none") in {"none", b"none"}
        return tuple(index for index in WRITES[node.op] if plain and index < len(node.inputs))
    if node.op == "Concat":
        return tuple(range(len(node.inputs)))
    return (0,) if node.op in QDQ or quantization_commutes(view, node) else ()


def _moved(view: GraphView, starts: Iterable[str]) -> frozenset[str]:
    """Return these tensors, and all tensors that hold their values."""
    waiting, found = list(starts), set(starts)
    while waiting:
        for use in view.uses(waiting.pop()):
            if use.index in value_inputs(view, use.node):
                fresh = {name for name in carried_outputs(use.node) or use.node.outputs if name} - found
                found |= fresh
                waiting += fresh
    return frozenset(found)


def _leading_to_output(view: GraphView, moved: frozenset[str]) -> frozenset[str]:
    """Return the tensors of `moved` that lead to a model output, including the output."""
    waiting = [info.name for info in view.outputs if info.name in moved]
    found = set(waiting)
    while waiting:
        node = view.producer(waiting.pop())
        if node is not None:
            fresh = {node.inputs[index] for index in value_inputs(view, node)} & moved - found
            found |= fresh
            waiting += fresh
    return frozenset(found)
