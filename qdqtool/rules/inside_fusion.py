"""Q/DQ between a layer and the activation or bias that fuses with it.

    Conv ─ Q ─ DQ ─ Relu ─ Q ─ DQ ─ Conv      two roundings
    Conv ─ Relu ─ Q ─ DQ ─ Conv               one

The layer, its bias and its activation are one kernel with one rounding at its end. A pair between them is a second
rounding; classic TensorRT cannot fuse across it.

Evidence: RTX 1.7.1 rounds twice inside the epilogue (qdq_between_conv_relu, silu_inner_q). Classic: placement guide;
NVIDIA/TensorRT issue 2592.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot, SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.find import behind_pairs
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.patterns import is_fused
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import FUSES_ACTIVATION, FUSES_BEHIND_PRODUCT, GATES, PRODUCTS


def match(flow: Flow) -> Iterator[tuple[QdqPair, Node | None, Node]]:
    """Pairs of run-time values that stand in front of what fuses with their producer, the producer, and their reader."""
    view = flow.view
    for pair in flow.pairs:
        maker = view.producer(pair.tensor)
        for slot in pair.slots if pair.kind is SlotKind.ACTIVATION else ():
            reader = view.by_name[slot.node]
            op = "" if maker is None else maker.op
            if (
                (op in PRODUCTS and is_fused(view, reader))
                or (op in FUSES_ACTIVATION and reader.op in FUSES_BEHIND_PRODUCT)
                or _inside_silu(view, pair, reader)
            ):
                yield pair, maker, reader


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Those on the result of a product."""
    for _, maker, reader in match(flow):
        if maker is not None and maker.op in PRODUCTS and is_fused(flow.view, reader):
            yield Violation(
                node=reader.name,
                reason=f"Q/DQ stands between {maker.op} {maker.name} and its {reader.op}",
                effect="the values are rounded twice"
                + ("" if target.is_rtx else f", and {reader.op} is a float kernel of its own"),
                fix=f"move the pair behind {reader.name}; `qdqtool repair` takes it out",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Dissolve pairs that stand before an activation or before the product of a SiLU."""
    inside = frozenset(pair.dequantize for pair, _, _ in match(context.flow))
    for pair in context.pairs:
        reader, maker = context.consumer(pair), context.maker(pair.tensor)
        if reader is None or pair.quantize is None or pair.kind is SlotKind.WEIGHT:
            continue
        if pair.dequantize in inside:
            yield Change(
                edits=(SlotEdit(slot=pair.slots[0]),),
                subject=pair.quantize,
                what=f"taken out between {maker or 'the input'} and {reader.op} {reader.name!r}",
                reason="a pair between a node and its activation adds a rounding and may split their fusion",
            )
        elif reader.op == "Relu" and context.symmetric(pair) and _feeds_compute(context, reader):
            behind_it = (
                Slot(node=use.node.name, index=use.index) for use in context.view.uses(reader.outputs[0])
            )
            yield Change(
                edits=(
                    SlotEdit(slot=pair.slots[0]),
                    *(SlotEdit(slot=slot, scales=pair.scale) for slot in behind_it),
                ),
                subject=pair.quantize,
                what=f"moved behind Relu {reader.name!r}",
                reason="a Relu between a pair and a compute node keeps that node in float",
                error=0.0,
            )


def _feeds_compute(context: RepairContext, relu: Node) -> bool:
    """Whether a Relu feeds data inputs of compute nodes only."""
    uses = context.view.uses(relu.outputs[0])
    pinned = relu.outputs[0] in context.pinned
    return bool(uses) and not pinned and all(use.node.op in PRODUCTS and use.index < 2 for use in uses)


def _inside_silu(view: GraphView, pair: QdqPair, reader: Node) -> bool:
    """Whether `reader` multiplies x with sigmoid(x), and the pair is on one of the two."""
    if reader.op != "Mul" or len(reader.inputs) != 2:
        return False
    sources = [behind_pairs(view, name) for name in reader.inputs]
    for gate, value in (sources, sources[::-1]):
        node = view.producer(gate)
        if node is not None and node.op in GATES and behind_pairs(view, node.inputs[0]) == value:
            return pair.tensor in {gate, value}
    return False


PLUGIN = Rule(code="QDQ126", severity=Severity.WARNING, check=check, fix=fix)
