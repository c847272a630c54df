"""One compute node of a built engine: its operands in the Q/DQ graph, the layers that hold it, why it is not INT8."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from qdqtool.core.advice import as_float
from qdqtool.core.engine import EngineLayer
from qdqtool.core.placement import Decision, SlotKind
from qdqtool.graph.kv_caches import stored_caches
from qdqtool.graph.qdq.lower import MX_DEQUANTIZE
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.asked import arithmetic_word
from qdqtool.trt.join import LayerMatch
from qdqtool.trt.ops import DEQUANTIZE, KEEPS_AXES, QUANTIZE, RECURRENT, value_preserving

_DEQUANTIZERS = frozenset({DEQUANTIZE, MX_DEQUANTIZE})


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Why a node is not INT8, and what to do about it.

    Attributes:
        reason: what keeps it in float.
        fix: what to change.
        of_builder: whether it says what the builder makes of every such node. A node of the same operator in INT8 in the
            same engine, of which the rule says the same, contradicts that, and it is not printed.
        no_kernel: whether no kernel computes it in the format, whatever else is changed.
    """

    reason: str
    fix: str
    of_builder: bool = False
    no_kernel: bool = False


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


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEvidence:
    """A node, its operands in the Q/DQ graph, what placement decided, and the layers that hold it.

    Attributes:
        view: the Q/DQ model.
        node: the node in question.
        operands: its inputs that take part in the products.
        asked: the format that Q/DQ in front of them asks for, "int8", "int4-weights" or "float".
        decisions: what placement decided for them; empty without a placement.
        holders: the engine layers that name it.
        regions: regions of the engine whose kernels are not listed.
        made: kernels that make a constant operand of these layers from stored constants, in every inference.
        rtx: whether TensorRT for RTX made the engine, which refuses some INT8 that classic TensorRT runs.
        targets: architectures the engine was built for ("sm86"), as far as known.
        explanations: why it is not INT8 in this engine, by the rules; what the engine contradicts is left out.
    """

    view: GraphView
    node: Node
    operands: tuple[Operand, ...]
    asked: str
    decisions: tuple[Decision, ...]
    holders: LayerMatch
    regions: tuple[EngineLayer, ...] = ()
    made: tuple[EngineLayer, ...] = ()
    rtx: bool = False
    targets: tuple[str, ...] = ()
    explanations: tuple[Explanation, ...] = ()

    @property
    def activations(self) -> tuple[Operand, ...]:
        """Run-time operands."""
        return tuple(operand for operand in self.operands if not operand.fixed)

    @property
    def weights(self) -> tuple[Operand, ...]:
        """Operands that are known when the engine is built."""
        return tuple(operand for operand in self.operands if operand.fixed)

    @property
    def requested(self) -> bool:
        """Whether INT8 was asked for on every operand: by the placement, or without one by the Q/DQ nodes."""
        if self.decisions:
            return all(decision.quantize for decision in self.decisions)
        return bool(self.operands) and all(operand.quantized for operand in self.operands)

    @property
    def weights_alone(self) -> bool:
        """Whether placement quantized its weights only: a smaller engine, and float arithmetic as requested."""
        kinds = {decision.kind for decision in self.decisions if decision.quantize}
        return kinds == {SlotKind.WEIGHT}

    @property
    def any_quantized(self) -> bool:
        """Whether Q/DQ feeds an operand."""
        return any(operand.quantized for operand in self.operands)

    @property
    def arithmetic(self) -> str:
        """What a sentence calls the arithmetic that Q/DQ on all of its inputs would ask for."""
        return arithmetic_word(self.asked)

    @property
    def without_qdq(self) -> str:
        """What to do with a node that no kernel computes in INT8."""
        return self.as_float or "nothing to do"

    @property
    def as_float(self) -> str:
        """The setting or the command that takes the Q/DQ off its inputs; "" where it is float by itself or by placement."""
        refused = self.decisions and not self.requested
        if refused or not self.any_quantized:
            return ""
        return as_float([self.node.name], placed=bool(self.decisions))

    def concat(self, operand: Operand) -> tuple[Node, tuple[Node, ...]] | None:
        """The Concat without Q/DQ behind it that feeds an operand, and the DequantizeLinear of each of its branches.

        None where the operand is quantized, comes from elsewhere, or has a branch without DequantizeLinear.
        """
        node = self.view.producer(self.node.inputs[operand.index])
        if operand.quantized or node is None or node.op != "Concat":
            return None
        makers = [self.view.producer(name) for name in node.inputs]
        found = tuple(maker for maker in makers if maker is not None and maker.op == DEQUANTIZE)
        return (node, found) if len(found) == len(makers) else None

    def largest_branch(self, operand: Operand) -> float | None:
        """The largest scale of the branches of the Concat that feeds an operand; None where one is not known."""
        found = self.concat(operand)
        values = [self.view.constant(node.inputs[1]) for node in found[1]] if found else []
        known = [float(abs(value).max()) for value in values if value is not None and value.size]
        return max(known) if known and len(known) == len(values) else None


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

    @cached_property
    def _cached(self) -> frozenset[str]:
        """Tensors of caches that are stored in few bits, which says nothing about the arithmetic of their readers."""
        return frozenset(name for cache in stored_caches(self._view) for name in cache.tensors)

    def _operand(self, tensor: str, index: int) -> Operand:
        view = self._view
        reached, passed = self._through_moves(tensor)
        producer = view.producer(reached)
        if producer is None or producer.op not in _DEQUANTIZERS or producer.inputs[0] in self._cached:
            return Operand(index=index, source=tensor, fixed=self._is_fixed(tensor))
        quantize = view.producer(producer.inputs[0])
        source = (
            quantize.inputs[0] if quantize is not None and quantize.op == QUANTIZE else producer.inputs[0]
        )
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
