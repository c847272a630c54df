"""An Add of INT8 values whose sum nobody reads in INT8.

    a ─ Q ─ DQ ─┐                        a ─┐
                Add ─ Sigmoid                Add ─ Sigmoid      same speed, no rounding
    b ─ Q ─ DQ ─┘                        b ─┘

A layer that does not multiply is INT8 only where its inputs and its output are: without Q/DQ behind it the values are
rounded, given back as float, and added in float.

Evidence: RTX 1.7.1 adds in float behind two roundings, in as many kernels and bytes as without the pairs
(sum_read_as_float). NVIDIA's placement rules: quantize inputs and outputs of such layers, or neither.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import Node
from qdqtool.matching.candidates import BuiltGraph, Candidate, Goal, kernel_of
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import CLAMPS, PRODUCTS, QDQ


def match(flow: Flow) -> Iterator[tuple[Node, tuple[QdqPair, ...]]]:
    """Adds with a pair of its own on every input and a float reader of the sum, and these pairs."""
    for node in flow.view.nodes:
        if node.op != "Add":
            continue
        pairs = [flow.by_dequantized.get(tensor) for tensor in node.inputs]
        alone = tuple(pair for pair in pairs if is_int8(pair) and pair is not None and len(pair.slots) == 1)
        if len(alone) < len(pairs) or any(_is_product(flow, pair.tensor) for pair in alone):
            continue
        if not _is_quantized(flow, node):
            yield node, alone


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Adds with a pair of its own on every input and a float reader of the sum."""
    for node, _ in match(flow):
        yield Violation(
            node=node.name,
            reason="both of its inputs have Q/DQ, its result has none",
            effect="the inputs are rounded and added in float",
            fix="take Q/DQ off both inputs, as `qdqtool repair` does, or quantize the result too if an INT8 layer reads it",
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Take Q/DQ off both inputs."""
    for node, pairs in match(Flow(context.model)):
        yield Change(
            edits=tuple(SlotEdit(slot=slot) for pair in pairs for slot in pair.slots),
            subject=node.name,
            what="Q/DQ taken off both inputs",
            reason="an Add whose sum is read as float adds in float behind two roundings",
        )


def _is_product(flow: Flow, tensor: str) -> bool:
    """Whether the Add would fuse with what makes `tensor`; the rule residual speaks of these."""
    producer = flow.view.producer(tensor)
    return producer is not None and producer.op in PRODUCTS


def _is_quantized(flow: Flow, node: Node) -> bool:
    """Whether the sum, or what an activation makes of it, meets a QuantizeLinear."""
    readers = flow.readers(node.outputs[0])
    while len(readers) == 1 and readers[0].op in CLAMPS:
        readers = flow.readers(readers[0].outputs[0])
    return any(reader.op == "QuantizeLinear" for reader in readers)


def candidates(built: BuiltGraph) -> Iterator[Candidate]:
    """Q/DQ for who reads the float result of a kernel whose inputs are INT8."""
    for layer in built.layers_with("int8_in_float_out"):
        made = (built.view.by_name.get(name) for name in sorted(layer.onnx_nodes))
        tensors = [output for node in made if node is not None for output in node.outputs]
        edits = tuple(
            SlotEdit(slot=Slot(node=use.node.name, index=use.index), scales=None)
            for tensor in tensors
            for use in built.view.uses(tensor)
            if use.node.name not in layer.onnx_nodes and use.node.op not in QDQ
        )
        if edits:
            yield Candidate(
                subject=kernel_of(layer),
                goal=Goal.CHEAPER,
                text="quantize its result for its reader",
                edits=edits,
            )


PLUGIN = Rule(
    code="QDQ146",
    formats=frozenset({"int8"}),
    severity=Severity.INFO,
    check=check,
    fix=fix,
    candidates=candidates,
)
