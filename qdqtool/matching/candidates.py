"""Candidate edits for a built engine: rules propose them, and a build decides whether they help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from qdqtool.core.engine import Engine, EngineLayer
from qdqtool.core.findings import Finding, NodeVerdict
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Placement, Slot
from qdqtool.core.wiring import Wiring
from qdqtool.graph.model import Model
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.evidence import NodeEvidence
from qdqtool.trt.ops import DEQUANTIZE, QDQ


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
        settings: recipe values that quantize the same inputs in a new run; () if there are none.
    """

    subject: str
    goal: Goal
    text: str
    edits: tuple[SlotEdit, ...]
    rule: str = ""
    settings: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Identity of the candidate, stable when the graph changes."""
        return self.subject, self.text


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
    found: dict[Slot, None] = {}
    for name in layer.onnx_nodes:
        node = view.by_name.get(name)
        if node is None or node.op not in QDQ:
            continue
        ends = [node] if node.op == DEQUANTIZE else [use.node for use in view.uses(node.outputs[0])]
        for end in ends:
            for use in view.uses(end.outputs[0]) if end.op == DEQUANTIZE else ():
                if use.index < len(use.node.inputs):
                    found[Slot(node=use.node.name, index=use.index)] = None
    return tuple(found)


def scale_of(view: GraphView, dequantize: Node | None) -> float | None:
    """Return the largest scale of a DequantizeLinear; None if the scale is computed, or there is no node."""
    value = None if dequantize is None else view.constant(dequantize.inputs[1])
    return None if value is None or not value.size else float(abs(value).max())


def feeding(view: GraphView, tensor: str) -> Node | None:
    """Return the DequantizeLinear that produces a tensor; None for other tensors."""
    maker = view.producer(tensor)
    return maker if maker is not None and maker.op == DEQUANTIZE else None
