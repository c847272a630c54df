"""What the kernel of a sum still does with its result where a later kernel wants what was summed up too.

Such a kernel writes all the values and the sums, and ends. Two things stay in it: what is computed on the way to outputs
of the model alone, and the nodes between a fork right behind the sum and the node at which its ways meet again:

    ReduceMean ─┬─ Sigmoid ─┐
                └────────── Mul │ ─ Relu ─ Q          one kernel, and the next one

A chain without a fork is computed by whatever reads its end. A Gelu in five nodes stays up to its last factor, which
the next kernel multiplies by; both state all five.

A Q behind a sum is a kernel of its own, for which that of the sum scales only, where a convolution reads it or the sum is
not along the last axis: along rows the same kernel rounds.

Evidence: RTX 1.7.1, 60 stretches of ReduceMean and GlobalAveragePool over 14x14 and 56x56 pixels, whose values a second
convolution reads too: 16 chains and forks in front of a product, a Q, an output; 12 means of tokens in front of a Q.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from qdqtool.graph.view import GraphView, Node
from qdqtool.prediction.sums import axes, shrinks
from qdqtool.trt.ops import (
    CLAMPS,
    CONVOLUTIONS,
    FACTORS,
    GATES,
    GELU_NODES,
    LAYOUT,
    POINTWISE,
    RESHAPING,
    WRITTEN_AS_FORKS,
)

_CHAIN = 4
"""Nodes between a sum and its Q that are looked at."""
_FARTHEST = 16
"""Nodes behind a sum that are looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BehindTotal:
    """What becomes of the nodes behind a sum.

    Attributes:
        staying: those in its kernel.
        again: those of them that the next kernel states too.
        readers: the nodes that read the last of `again`.
    """

    staying: frozenset[str]
    again: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


def behind_total(view: GraphView, total: Node, between: Container[str]) -> BehindTotal:
    """The nodes behind `total` in the kernel that ends with it; `between` holds all nodes between products."""
    joined = _until_joined(view, total, between)
    again = _gelu(view, joined)
    return BehindTotal(
        staying=frozenset(node.name for node in (*joined, *again)) | _to_outputs(view, total, between),
        again=tuple(node.name for node in again),
        readers=tuple(node.name for node in _readers(view, again[-1])) if again else (),
    )


def _readers(view: GraphView, node: Node) -> list[Node]:
    return [use.node for tensor in node.outputs for use in view.uses(tensor)]


def _until_joined(view: GraphView, total: Node, between: Container[str]) -> tuple[Node, ...]:
    """The nodes of a fork right behind a sum, up to the one at which all its ways have met; () without one.

    An activation with a gate is one operator to the compiler, and no fork; Gelu and Mish are written as forks.
    """
    waiting = _readers(view, total)
    known, found = {total.outputs[0]}, dict[str, Node]()
    if len(waiting) == 1:
        return (waiting[0],) if waiting[0].op in WRITTEN_AS_FORKS and waiting[0].name in between else ()
    while waiting and len(found) < _FARTHEST:
        node = min(waiting, key=lambda each: each.position)
        if node.op not in POINTWISE or node.name not in between or not _reads_only(view, node, known):
            return ()
        waiting = [each for each in waiting if each.name != node.name]
        found[node.name] = node
        if not waiting:
            gated = any(each.op in GATES | CLAMPS for each in found.values())
            return () if gated else tuple(found.values())
        known.add(node.outputs[0])
        waiting += _readers(view, node)
    return ()


def _reads_only(view: GraphView, node: Node, known: Container[str]) -> bool:
    return all(name in known or view.is_constant(name) for name in node.inputs)


def _gelu(view: GraphView, joined: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes of a Gelu that begins behind a sum, its constant factor included; () where it is none."""
    if len(joined) == 1 and joined[0].op == "Gelu":
        return joined
    readers = _readers(view, joined[-1]) if len(joined) == len(GELU_NODES) - 1 else []
    nodes = (*joined, *readers)
    ops = sorted("Mul" if node.op in FACTORS else node.op for node in nodes)
    return nodes if ops == sorted(GELU_NODES) and _reads_only(view, nodes[-1], _written(nodes)) else ()


def _written(nodes: tuple[Node, ...]) -> frozenset[str]:
    return frozenset(name for node in nodes for name in (*node.inputs[:1], *node.outputs))


def _to_outputs(view: GraphView, total: Node, between: Container[str]) -> frozenset[str]:
    """The nodes from which no way leads to another kernel: they are computed for outputs of the model alone."""
    behind = dict[str, Node]()
    waiting, known = _readers(view, total), {total.outputs[0]}
    while waiting and len(behind) < _FARTHEST:
        node = min(waiting, key=lambda each: each.position)
        waiting = [each for each in waiting if each.name != node.name]
        behind[node.name] = node
        if node.op in POINTWISE | LAYOUT and node.name in between and _reads_only(view, node, known):
            known.update(node.outputs)
            waiting += _readers(view, node)
    ending = set[str]()
    for node in sorted(behind.values(), key=lambda each: -each.position):
        if known.issuperset(node.outputs) and all(each.name in ending for each in _readers(view, node)):
            ending.add(node.name)
    return frozenset(ending)


def is_rounded_apart(view: GraphView, quantize: Node, level: Mapping[str, int]) -> bool:
    """Whether a Q behind a sum that leaves fewer values is a kernel of its own, beside the one of the sum."""
    read = [use.node for each in view.uses(quantize.outputs[0]) for use in view.uses(each.node.outputs[0])]
    convolved = any(node.op in CONVOLUTIONS for node in read)
    maker = view.producer(quantize.inputs[0])
    for _ in range(_CHAIN):
        if maker is None or level.get(maker.name) != level[quantize.name]:
            return False
        if shrinks(view, maker):
            return convolved or not _is_along_rows(view, maker)
        if maker.op not in POINTWISE and (convolved or maker.op not in RESHAPING):
            return False
        maker = view.producer(maker.inputs[0])
    return False


def _is_along_rows(view: GraphView, total: Node) -> bool:
    return len(view.info(total.inputs[0]).shape or ()) - 1 in axes(view, total)
