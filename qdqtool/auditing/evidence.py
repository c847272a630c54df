"""One compute node with everything the audit knows of it."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.auditing.operands import Operand
from qdqtool.core.engine import EngineLayer
from qdqtool.core.placement import Decision, SlotKind
from qdqtool.graph.view import GraphView, Node
from qdqtool.trt.join import LayerMatch


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEvidence:
    """A node, its operands in the Q/DQ graph, what placement decided, and the layers that hold it.

    Attributes:
        view: the Q/DQ model.
        node: the node in question.
        operands: its inputs that take part in the products.
        decisions: what placement decided for them; empty without a placement.
        holders: the engine layers that name it.
        regions: regions of the engine whose kernels are not listed.
        made: kernels that make a constant operand of these layers from stored constants, in every inference.
        rtx: whether TensorRT for RTX made the engine, which refuses some INT8 that classic TensorRT runs.
        targets: architectures the engine was built for ("sm86"), as far as known.
    """

    view: GraphView
    node: Node
    operands: tuple[Operand, ...]
    decisions: tuple[Decision, ...]
    holders: LayerMatch
    regions: tuple[EngineLayer, ...] = ()
    made: tuple[EngineLayer, ...] = ()
    rtx: bool = False
    targets: tuple[str, ...] = ()

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
