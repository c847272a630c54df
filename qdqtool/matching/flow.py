"""Follows INT8 values through a Q/DQ graph: which tensor is the result of which DequantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from qdqtool.core.dtypes import DType
from qdqtool.core.qdq import QdqPair
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.find import find
from qdqtool.graph.qdq.lift import lift
from qdqtool.graph.qdq.quantized import QuantizedGraph
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.ops import (
    KEEPS_AXES,
    PRODUCTS,
    QDQ,
    carried_inputs,
    carried_outputs,
    holds_dequantize_back,
)


class Flow:
    """A Q/DQ graph with its pairs, and where their values go. All questions together are linear in nodes."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.view = model.view
        self.pairs = tuple(pair for pair in find(model) if not _makes_scales(model.view, pair))

    @cached_property
    def lifted(self) -> QuantizedGraph:
        """The float graph behind the Q/DQ and how each slot is quantized; nodes keep their names."""
        return lift(self._model)[0]

    @property
    def plain(self) -> GraphView:
        """The float graph alone, in which patterns are matched."""
        return self.lifted.model.view

    @cached_property
    def by_dequantize(self) -> dict[str, QdqPair]:
        """Pairs by the name of their DequantizeLinear."""
        return {pair.dequantize: pair for pair in self.pairs if pair.dequantize is not None}

    @cached_property
    def by_tensor(self) -> dict[str, tuple[QdqPair, ...]]:
        """Pairs by the float tensor they quantize."""
        found: dict[str, list[QdqPair]] = {}
        for pair in self.pairs:
            if pair.quantize is not None:
                found.setdefault(pair.tensor, []).append(pair)
        return {tensor: tuple(pairs) for tensor, pairs in found.items()}

    @cached_property
    def origins(self) -> dict[str, QdqPair]:
        """The pair whose values a tensor holds, for tensors that are INT8 in disguise.

        DQ moves forward through commuting operators, and through a Concat whose branches have equal scales.
        """
        found: dict[str, QdqPair] = {}
        for node in self.view.nodes:
            pair = self._origin(node, found)
            if pair is not None:
                for output in carried_outputs(node):
                    found[output] = pair
        return found

    @cached_property
    def by_dequantized(self) -> dict[str, QdqPair]:
        """Pairs by the result of their DequantizeLinear."""
        return {self.view.by_name[name].outputs[0]: pair for name, pair in self.by_dequantize.items()}

    @cached_property
    def held_back(self) -> frozenset[str]:
        """Tensors that hold the values of a pair whose DequantizeLinear TensorRT for RTX does not carry that far."""
        found: set[str] = set()
        for node in self.view.nodes:
            if node.name in self.by_dequantize or not any(output in self.origins for output in node.outputs):
                continue
            if holds_dequantize_back(self.view, node) or not found.isdisjoint(node.inputs):
                found.update(carried_outputs(node))
        return frozenset(found)

    @cached_property
    def channel_axes(self) -> dict[str, int | None]:
        """Where the channel axis of a pair's scales is, followed through Transposes; None behind what reshapes."""
        found: dict[str, int | None] = {}
        for node in self.view.nodes:
            if node.name in self.by_dequantize:
                found[node.outputs[0]] = self.by_dequantize[node.name].axis
            elif node.outputs and node.outputs[0] in self.origins:
                found[node.outputs[0]] = self._moved_axis(node, found.get(node.inputs[0]))
        return found

    def _moved_axis(self, node: Node, axis: int | None) -> int | None:
        if node.op == "Transpose":
            rank = len(self.view.info(node.inputs[0]).shape or ())
            order = node.attribute("perm", tuple(reversed(range(rank))))
            return order.index(axis) if axis in order else None
        return axis if node.op in KEEPS_AXES else None

    def origin(self, node: Node, index: int) -> QdqPair | None:
        """The pair whose values input `index` of `node` holds."""
        return self.origins.get(node.inputs[index])

    def products(self) -> Iterator[Node]:
        """Nodes that multiply their first two inputs."""
        for node in self.view.nodes:
            if node.op in PRODUCTS and len(node.inputs) >= 2:
                yield node

    def readers(self, tensor: str) -> tuple[Node, ...]:
        """The nodes that read `tensor`, each once."""
        return tuple({use.node.name: use.node for use in self.view.uses(tensor)}.values())

    def _origin(self, node: Node, found: dict[str, QdqPair]) -> QdqPair | None:
        if node.name in self.by_dequantize:
            return self.by_dequantize[node.name]
        if node.op == "Concat":
            branches = [found.get(tensor) for tensor in node.inputs]
            first = branches[0] if branches else None
            same = first is not None and all(
                branch is not None and branch.scale == first.scale for branch in branches
            )
            return first if same else None
        return found.get(node.inputs[0]) if carried_inputs(self.view, node) else None


def _makes_scales(view: GraphView, pair: QdqPair) -> bool:
    """Whether a pair only makes scales of another one, as formats with two levels of scales are written."""
    last = view.by_name[pair.dequantize or pair.quantize or ""]
    uses = view.uses(last.outputs[0])
    return bool(uses) and all(use.node.op in QDQ and use.index == 1 for use in uses)


def is_int8(pair: QdqPair | None) -> bool:
    """Whether a pair makes INT8 values (UINT8 with zero point 0 is read as INT8)."""
    return pair is not None and pair.dtype in {DType.INT8, DType.UINT8}
