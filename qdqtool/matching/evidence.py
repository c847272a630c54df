"""Evidence about one compute node of a built engine: its operands in the Q/DQ graph, its layers, why it is not INT8."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from qdqtool.core.advice import as_float
from qdqtool.core.claims import HAS_NO_KERNEL, Claim, Part
from qdqtool.core.engine import Engine, EngineLayer, Wiring
from qdqtool.core.findings import Finding, NodeVerdict
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Decision, Placement, Slot, SlotKind
from qdqtool.core.target import Target
from qdqtool.graph.model import Model
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import Factor, arithmetic_word, factor
from qdqtool.trt.names import LayerMatch
from qdqtool.trt.ops import DEQUANTIZE, QDQ, RECURRENT


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The reason why a node is not INT8, and the fix.

    Attributes:
        reason: what keeps it in float.
        fix: what to change.
        of_builder: whether it says what the builder makes of every such node. A node of the same operator in INT8 in the
            same engine, of which the rule says the same, contradicts that, and it is not printed.
        no_kernel: whether no kernel computes it in the format, whatever else is changed.
        claims: the parts of the reason and the fix that a build can contradict.
    """

    reason: str
    fix: str
    of_builder: bool = False
    no_kernel: bool = False
    claims: tuple[Claim, ...] = ()

    @property
    def all_claims(self) -> tuple[Claim, ...]:
        """The claims, with one for `no_kernel` if it is set and the reason has no claim."""
        has_reason = any(claim.part is Part.REASON for claim in self.claims)
        return (*self.claims, *(HAS_NO_KERNEL,) * (self.no_kernel and not has_reason))


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEvidence:
    """A node, its operands in the Q/DQ graph, the decisions of placement, and the layers that hold it.

    Attributes:
        flow: the Q/DQ model.
        node: the node in question.
        operands: its inputs that take part in the products.
        request: the format that Q/DQ before them asks for, "int8", "int4-weights" or "float".
        decisions: what placement decided for them; empty without a placement.
        holders: the engine layers that name it.
        regions: regions of the engine whose kernels are not listed.
        producers: kernels that make a constant operand of these layers from stored constants, in every inference.
        rtx: whether TensorRT for RTX made the engine, which refuses some INT8 that classic TensorRT runs.
        targets: architectures the engine was built for ("sm86"), as far as known.
        explanations: why it is not INT8 in this engine, by the rules; what the engine contradicts is left out.
    """

    flow: Flow
    node: Node
    operands: tuple[Factor, ...]
    request: str
    decisions: tuple[Decision, ...]
    holders: LayerMatch
    regions: tuple[EngineLayer, ...] = ()
    producers: tuple[EngineLayer, ...] = ()
    rtx: bool = False
    targets: tuple[str, ...] = ()
    explanations: tuple[Explanation, ...] = ()

    @property
    def view(self) -> GraphView:
        """The graph with its Q and DQ nodes."""
        return self.flow.view

    @property
    def activations(self) -> tuple[Factor, ...]:
        """Run-time operands."""
        return tuple(operand for operand in self.operands if not operand.fixed)

    @property
    def weights(self) -> tuple[Factor, ...]:
        """Operands that are constant when the engine is built."""
        return tuple(operand for operand in self.operands if operand.fixed)

    @property
    def requested(self) -> bool:
        """True if INT8 was asked for on every operand: by the placement, or if there is none, by the Q/DQ nodes."""
        if self.decisions:
            return all(decision.quantize for decision in self.decisions)
        return bool(self.operands) and all(operand.quantized for operand in self.operands)

    @property
    def weights_alone(self) -> bool:
        """True if placement quantized only the weights: a smaller engine, with float arithmetic as requested."""
        kinds = {decision.kind for decision in self.decisions if decision.quantize}
        return kinds == {SlotKind.WEIGHT}

    @property
    def any_quantized(self) -> bool:
        """True if any operand is quantized."""
        return any(operand.quantized for operand in self.operands)

    @property
    def arithmetic(self) -> str:
        """Name of the arithmetic that Q/DQ on all inputs of the node would ask for, for use in a sentence."""
        return arithmetic_word(self.request)

    @property
    def without_qdq(self) -> str:
        """The fix for a node that no kernel computes in INT8."""
        return self.as_float or "nothing to do"

    @property
    def as_float(self) -> str:
        """The setting or command that removes the Q/DQ from the node's inputs.

        "" if the node has none or placement keeps it float.
        """
        refused = self.decisions and not self.requested
        if refused or not self.any_quantized:
            return ""
        return as_float([self.node.name], placed=bool(self.decisions))

    def moves(self, operand: Factor) -> frozenset[str]:
        """Return the operators between an operand and its DequantizeLinear."""
        return frozenset(move.op for move in self.flow.moves(self.node, operand.index))

    def concat(self, operand: Factor) -> tuple[Node, tuple[Node, ...]] | None:
        """Return the Concat that feeds an operand without Q/DQ between, and the DequantizeLinear of each of its branches.

        None if the operand is quantized, comes from elsewhere, or has a branch without DequantizeLinear.
        """
        node = self.view.producer(self.node.inputs[operand.index])
        if operand.quantized or node is None or node.op != "Concat":
            return None
        makers = [self.view.producer(name) for name in node.inputs]
        dequantizers = tuple(maker for maker in makers if maker is not None and maker.op == DEQUANTIZE)
        return (node, dequantizers) if len(dequantizers) == len(makers) else None

    def largest_branch(self, operand: Factor) -> float | None:
        """Return the largest scale of the branches of the Concat that feeds an operand; None if a scale is unknown."""
        branches = self.concat(operand)
        values = [self.view.constant(node.inputs[1]) for node in branches[1]] if branches else []
        scales = [float(abs(value).max()) for value in values if value is not None and value.size]
        return max(scales) if scales and len(scales) == len(values) else None


def operands(flow: Flow, node: Node, target: Target) -> tuple[Factor, ...]:
    """Return the inputs that are multiplied: two, or three for attention and recurrent nodes (both weights)."""
    count = 3 if "Attention" in node.op or node.op in RECURRENT else 2
    return tuple(
        factor(flow, node, index, target) for index, tensor in enumerate(node.inputs[:count]) if tensor
    )


# --- candidates ------------------------------------------------------------------------------------------------------
# Candidate edits for a built engine: rules propose them, and a build decides whether they help.


class Goal(str, Enum):
    """The condition for accepting a candidate."""

    INT8 = "the node runs INT8"
    ALLOWED = "a node that placement kept float runs INT8, and the sum of kernels and bytes does not grow"
    CHEAPER = "fewer kernels or bytes, and the other figure grows by less"
    CLOSER = "the result is closer to the float model, at no cost"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A candidate fix of one finding.

    Attributes:
        subject: a node if the goal is INT8 or ALLOWED, else a node, the nodes of a kernel, or tensors.
        goal: what it is for.
        text: what is done, in words.
        edits: the inputs to be quantized otherwise; scales that are None are measured.
        rule: who proposes it.
        settings: recipe values that make the same change in a new run; () if there are none. Without edits, they are the
            change.
        also: more nodes that the same change is for.
    """

    subject: str
    goal: Goal
    text: str
    edits: tuple[SlotEdit, ...]
    rule: str = ""
    settings: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that the change is for."""
        return (self.subject, *self.also)

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the candidate, stable when the graph changes. A setting is one, whichever of its nodes are float."""
        return "" if self.goal is Goal.ALLOWED and self.settings else self.subject, self.text


@dataclass(frozen=True, kw_only=True)
class BuiltGraph:
    """A Q/DQ model, the engine built from it, and the audit of both.

    Attributes:
        model: the Q/DQ model.
        placement: the decisions that made it; None for third-party.
        engine: its layers.
        wiring: who writes and who reads what among its kernels.
        nodes: every compute node with its evidence and its verdict, in graph order.
        findings: of the audit.
    """

    model: Model
    placement: Placement | None
    engine: Engine
    wiring: Wiring
    nodes: tuple[tuple[NodeEvidence, NodeVerdict], ...]
    findings: tuple[Finding, ...]

    @property
    def view(self) -> GraphView:
        """The graph of the Q/DQ model."""
        return self.model.view

    def layers_with(self, *checks: str) -> Iterator[EngineLayer]:
        """Yield the kernels with findings of these checks."""
        subjects = {finding.subject for finding in self.findings if finding.check in checks}
        return (layer for layer in self.engine.kernels if layer.name in subjects)


def kernel_of(layer: EngineLayer) -> str:
    """Return an identity of a kernel that is stable across builds: its nodes, because kernel names change."""
    return ", ".join(sorted(layer.onnx_nodes)) or layer.name


def readers_of_pairs(view: GraphView, layer: EngineLayer) -> tuple[Slot, ...]:
    """Return the inputs that read the Q/DQ pairs contained in a layer."""
    slots: dict[Slot, None] = {}
    for name in layer.onnx_nodes:
        node = view.by_name.get(name)
        if node is None or node.op not in QDQ:
            continue
        ends = [node] if node.op == DEQUANTIZE else [use.node for use in view.uses(node.outputs[0])]
        for end in ends:
            for use in view.uses(end.outputs[0]) if end.op == DEQUANTIZE else ():
                if use.index < len(use.node.inputs):
                    slots[Slot(node=use.node.name, index=use.index)] = None
    return tuple(slots)


def scale_of(view: GraphView, dequantize: Node | None) -> float | None:
    """Return the largest scale of a DequantizeLinear; None if the scale is computed, or there is no node."""
    value = None if dequantize is None else view.constant(dequantize.inputs[1])
    return None if value is None or not value.size else float(abs(value).max())


def feeding(view: GraphView, tensor: str) -> Node | None:
    """Return the DequantizeLinear that produces a tensor; None for other tensors."""
    maker = view.producer(tensor)
    return maker if maker is not None and maker.op == DEQUANTIZE else None
