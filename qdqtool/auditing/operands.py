"""What feeds an input of a compute node: a weight or a run-time value, behind Q/DQ or not, quantized how."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from qdqtool.graph.lower import MX_DEQUANTIZE
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import DEQUANTIZE, KEEPS_AXES, QUANTIZE, RECURRENT, value_preserving

_Q = QUANTIZE
_DEQUANTIZERS = frozenset({DEQUANTIZE, MX_DEQUANTIZE})


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """One input of a compute node, traced back to where it comes from.

    Attributes:
        index: input number.
        source: the tensor before Q/DQ and moves.
        fixed: whether it depends on constants only, as weights do.
        dequantize: the DequantizeLinear that feeds it, directly or through moves; None where there is none.
        moves: operators between that DequantizeLinear and the node, nearest first.
        scale_shape: shape of the scale; None without Q/DQ or for a computed scale.
        axis: channel axis of the scale where it has more than one element.
        seen_axis: that axis as the node sees it, behind the moves; None where a move hides it.
    """

    index: int
    source: str
    fixed: bool
    dequantize: Node | None = None
    moves: tuple[str, ...] = ()
    scale_shape: tuple[int, ...] | None = None
    axis: int | None = None
    seen_axis: int | None = None

    @property
    def quantized(self) -> bool:
        """Whether a DequantizeLinear feeds it."""
        return self.dequantize is not None


def reads_through(view: GraphView, node: Node) -> bool:
    """Whether what is read behind `node` is still what a DequantizeLinear in front of it gave; any Pad counts."""
    alone = node.op != "Concat" and value_preserving(view, node)
    return alone or node.op in KEEPS_AXES or node.op == "Pad"


class Operands:
    """Operands of the nodes of one graph."""

    def __init__(self, view: GraphView) -> None:
        self._view = view

    def of(self, node: Node) -> tuple[Operand, ...]:
        """The inputs that take part in the products: two, or three for attention and recurrence (both weights)."""
        wanted = 3 if "Attention" in node.op or node.op in RECURRENT else 2
        return tuple(
            self._operand(tensor, index) for index, tensor in enumerate(node.inputs[:wanted]) if tensor
        )

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Outputs of nodes that depend on constants only, so that a builder computes them once."""
        found: set[str] = set()
        for node in self._view.nodes:
            if all(not name or name in found or self._view.is_constant(name) for name in node.inputs):
                found.update(node.outputs)
        return frozenset(found)

    def _operand(self, tensor: str, index: int) -> Operand:
        view = self._view
        reached, passed = self._through_moves(tensor)
        producer = view.producer(reached)
        if producer is None or producer.op not in _DEQUANTIZERS:
            return Operand(index=index, source=tensor, fixed=self._is_fixed(tensor))
        quantize = view.producer(producer.inputs[0])
        source = quantize.inputs[0] if quantize is not None and quantize.op == _Q else producer.inputs[0]
        shape = view.constant_shape(producer.inputs[1])
        several = shape is not None and any(dim > 1 for dim in shape)
        axis = producer.attribute("axis", 1) if several else None
        return Operand(
            index=index,
            source=source,
            fixed=self._is_fixed(source),
            dequantize=producer,
            moves=tuple(move.op for move in passed),
            scale_shape=shape,
            axis=axis,
            seen_axis=_seen(axis, passed, len(view.constant_shape(source) or ())),
        )

    def _is_fixed(self, tensor: str) -> bool:
        return tensor in self.fixed or self._view.is_constant(tensor)

    def _through_moves(self, tensor: str) -> tuple[str, tuple[Node, ...]]:
        moves: list[Node] = []
        producer = self._view.producer(tensor)
        while producer is not None and reads_through(self._view, producer):
            moves.append(producer)
            tensor = producer.inputs[0]
            producer = self._view.producer(tensor)
        return tensor, tuple(moves)


def _seen(axis: int | None, moves: tuple[Node, ...], rank: int) -> int | None:
    """Where the channel axis of a tensor of `rank` dimensions comes out behind `moves`, nearest first."""
    if axis is None or not rank:
        return None
    axis %= rank
    for move in reversed(moves):
        if move.op == "Transpose":
            order = move.attribute("perm", tuple(range(rank))[::-1])
            axis = list(order).index(axis) if axis in order else rank
        elif move.op not in KEEPS_AXES | {"Pad"}:
            return None
    return axis
