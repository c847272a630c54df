"""Normalizations of several groups, which are kernels of their own in TensorRT for RTX (the same for SM75, SM86, SM89 and SM120).

    Reshape ─ InstanceNormalization ─ Reshape ─ Mul ─ Add    five nodes, or the operator GroupNormalization: one kernel

Which kernels around it state its nodes too is decided by the order of the values in memory and by sizes:

- Channels last (convolutions in front, and convolutions behind what follows element by element) there is a kernel for
  32, 64, 96, ... channels, of 32 and of 16 channels with 8 groups only. It applies a Relu or Swish behind it, and then
  rounds for the convolution as well; what prepares it is a kernel that states the nodes, too.
- Plane by plane there is one for groups of up to 24576 values. It applies a Relu or Swish that nothing sums up.
- Otherwise the five nodes are stated by what is computed in front of them and by what is computed behind them, too.
- Groups of 3 channels, and channels that 16 does not divide, are no such pattern: the sums are a kernel, the Reshape in
  front of them and what gives the groups their factors are in those around it.

With one group the sums are made along rows, in one kernel with what is around them.

Evidence: RTX 1.7.1, 303 builds for SM86 of a normalization between two convolutions: 16 to 512 channels in 2 to 64 groups, 4x4
to 224x224 values, with activations, sums with a shortcut, means and products behind it (`__myl_Inor` and `Gnor` are the
kernels' names); 24336 values in a group are one kernel plane by plane, 24964 are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from qdqtool.graph.view import GraphView, Node
from qdqtool.prediction.layers import is_swish
from qdqtool.prediction.sums import axes
from qdqtool.trt.ops import BEHIND_GROUPS, CONVOLUTIONS, DEQUANTIZE, POINTWISE, QUANTIZE

_LARGEST_GROUP = 24576
"""Values of a group that one kernel normalizes plane by plane: 96 KiB of floats."""
_STEP, _FEWEST, _GROUPS_OF_FEW = 32, 64, 8
"""Channels last: channels come in steps, and fewer of them only in so many groups."""
_EVEN, _NO_PATTERN = 16, 3
"""What divides the channels, and the channels of a group for which the pattern is not found."""
_FARTHEST = 64
"""Nodes around a normalization that are looked at for the order of values."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalization:
    """The kernel of a normalization.

    Attributes:
        nodes: what it computes.
        front: the node that ends the kernel in front, where that states `nodes` too.
        behind: nodes whose kernel states `nodes` too.
        foreseen: whether sizes and surroundings are among those that were built.
    """

    nodes: tuple[Node, ...]
    front: Node | None = None
    behind: tuple[Node, ...] = ()
    foreseen: bool = True


def normalizations(view: GraphView) -> Iterator[Normalization]:
    """The normalizations of several groups; what gives groups their own factors is part of them."""
    for node in view.nodes:
        if node.op == "GroupNormalization" and node.attribute("num_groups", 1) != 1:
            yield _kernel(view, (node,), int(node.attribute("num_groups")))
        if node.op == "InstanceNormalization" and (view.info(node.inputs[0]).shape or (0, 1))[1] != 1:
            nodes, groups = _grouped(view, node), (view.info(node.inputs[0]).shape or (0, 0))[1]
            if nodes and isinstance(groups, int):
                yield _kernel(view, nodes, groups)
            else:
                yield Normalization(nodes=(node,), foreseen=False)


def _grouped(view: GraphView, node: Node) -> tuple[Node, ...]:
    """The five nodes of a GroupNormalization as exporters write it; () where `node` stands alone."""
    before = view.producer(node.inputs[0])
    if before is None or before.op != "Reshape":
        return ()
    found = [before, node]
    for op in BEHIND_GROUPS:
        uses = view.uses(found[-1].outputs[0])
        if len(uses) != 1 or uses[0].node.op != op:
            return ()
        found.append(uses[0].node)
    return tuple(found)


def _kernel(view: GraphView, nodes: tuple[Node, ...], groups: int) -> Normalization:
    shape = view.info(nodes[0].inputs[0]).shape or ()
    channels = shape[1] if len(shape) > 1 else 0
    sizes = [size for size in shape[2:] if isinstance(size, int)]
    if not isinstance(channels, int) or not channels or len(sizes) != len(shape) - 2:
        return Normalization(nodes=nodes, behind=_readers(view, nodes[-1]), foreseen=False)
    large = channels // groups * prod(sizes) > _LARGEST_GROUP
    last = _is_channels_last(view, nodes)
    if channels % _EVEN or channels == _NO_PATTERN * groups:
        return _apart(view, nodes, large=large, last=last)
    activation = _activation(view, nodes[-1])
    if not last and not large:
        taken = activation if activation and not _is_summed(view, activation[-1]) else ()
        return Normalization(nodes=(*nodes, *taken))
    few = groups == _GROUPS_OF_FEW and channels in {_EVEN, _STEP}
    if last and (few or (channels >= _FEWEST and channels % _STEP == 0)):
        ends = [use.node.op for node in activation[-1:] for use in view.uses(node.outputs[0])]
        rounded = not CONVOLUTIONS.union({QUANTIZE}).isdisjoint(ends)
        return Normalization(nodes=nodes, behind=activation if rounded else ())
    front = view.producer(nodes[0].inputs[0])
    return Normalization(nodes=nodes, front=front, behind=_readers(view, nodes[-1]))


def _apart(view: GraphView, nodes: tuple[Node, ...], *, large: bool, last: bool) -> Normalization:
    """Where the pattern is not found: the sums alone, which in large groups start in the kernel in front."""
    if len(nodes) == 1:
        return Normalization(nodes=nodes, behind=_readers(view, nodes[0]), foreseen=not large)
    before, total = nodes[:2]
    behind = _readers(view, total) if large and last else ()
    return Normalization(nodes=(total,), front=before if large else None, behind=behind)


def _readers(view: GraphView, node: Node) -> tuple[Node, ...]:
    return tuple(use.node for use in view.uses(node.outputs[0]))


def _activation(view: GraphView, last: Node) -> tuple[Node, ...]:
    """The Relu or the two nodes of a Swish that read what a normalization hands on."""
    read = _readers(view, last)
    gates = tuple(node for node in read if node.op == "Sigmoid")
    if gates:
        scaled = tuple(node for node in read if node.op == "Mul" and gates[0].outputs[0] in node.inputs)
        return (gates[0], *scaled) if is_swish((gates[0], *scaled)) else ()
    return next(((node,) for node in read if node.op == "Relu"), ())


def _is_summed(view: GraphView, node: Node) -> bool:
    """Whether a value is summed up, or added to others: its kernel computes it then."""
    return any(axes(view, use.node) or use.node.op in POINTWISE for use in view.uses(node.outputs[0]))


def _is_channels_last(view: GraphView, nodes: tuple[Node, ...]) -> bool:
    """Whether convolutions make what is normalized, and read what becomes of it."""
    return _comes_from_convolutions(view, nodes[0].inputs[0]) and _goes_to_convolutions(view, nodes[-1])


def _comes_from_convolutions(view: GraphView, tensor: str) -> bool:
    waiting, seen = [tensor], {tensor}
    while waiting and len(seen) < _FARTHEST:
        node = view.producer(waiting.pop())
        if node is None:
            return False
        if node.op in CONVOLUTIONS | {DEQUANTIZE}:
            continue
        before = _grouped_behind(view, node)
        if before is None and node.op not in POINTWISE:
            return False
        inputs = (before,) if before else node.inputs
        for name in inputs:
            if name not in seen and not view.is_constant(name):
                seen.add(name)
                waiting.append(name)
    return True


def _grouped_behind(view: GraphView, node: Node) -> str | None:
    """What is normalized where `node` is the second Reshape of a normalization, or a GroupNormalization."""
    if node.op == "GroupNormalization":
        return node.inputs[0]
    total = view.producer(node.inputs[0]) if node.op == "Reshape" else None
    before = view.producer(total.inputs[0]) if total and total.op == "InstanceNormalization" else None
    return before.inputs[0] if before is not None and before.op == "Reshape" else None


def _goes_to_convolutions(view: GraphView, last: Node) -> bool:
    waiting, seen = [last], {last.name}
    while waiting and len(seen) < _FARTHEST:
        node = waiting.pop()
        if any(map(view.is_output, node.outputs)):
            return False
        for use in (use for tensor in node.outputs for use in view.uses(tensor)):
            reader = use.node
            if reader.name in seen or reader.op in CONVOLUTIONS:
                continue
            seen.add(reader.name)
            if reader.op in {QUANTIZE, DEQUANTIZE} or (
                reader.op in POINTWISE
                and all(
                    view.is_constant(name) or name in node.outputs or _comes_from_convolutions(view, name)
                    for name in reader.inputs
                )
            ):
                waiting.append(reader)
            else:
                return False
    return True
