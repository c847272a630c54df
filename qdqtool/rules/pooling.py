"""Average pooling: quantized on classic TensorRT in front of an INT8 layer, on TensorRT for RTX beside one.

    before                           after, classic TensorRT               after, RTX
    x ─ AveragePool ─ QDQ ─ Conv     x ─ QDQ ─ AveragePool ─ QDQ ─ Conv    unchanged

    x ─┬─ QDQ ─ Conv                 x ─┬─ QDQ ─ Conv                      as on classic TensorRT
       └─ AveragePool ─ QDQ ─ Conv      └─ QDQ ─ AveragePool ─ QDQ ─ Conv

Averages are not moved values, so the pool needs Q/DQ of its own; classic TensorRT then fuses DQ, pool and Q. RTX
does so with windows of 3x3 and stride 1. All others it pools in float whatever is quantized, so that Q/DQ in front only adds a rounding, unless another layer reads the same
values in INT8: the pool then reads them too, and its input is not written as float as well. A global average is part
of the kernel that makes its input, so there is nothing to save.

Evidence: RTX 1.7.1: GlobalAveragePool before a Gemm, 5 kernels and 0.115 MB either way, one more quantize-dequantize
inside with Q/DQ; AveragePool stays `avgpool` Float to Float, 7 kernels and 0.225 MB either way. Two inception modules
with an averaged branch: 29 kernels and 1.91 MB with Q/DQ in front of the average, 31 and 2.90 MB without. 3x3 with
stride 1 between two convolutions: 6 kernels and 0.74 MB with Q/DQ in front, 7 and 1.08 MB without. Q/DQ in
front of a global average, as modelopt writes it, only rounds once more in ResNet-18 and ResNet-50. Classic: placement
guide of 8.x ("quantizable" layers).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.placement import Opinion, QuantSpec, Slot, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.demand import wanted_slots
from qdqtool.matching.rule import Rule, Violation, taken_off
from qdqtool.trt.ops import AVERAGE_POOLS, AVERAGES, averages_in_int8


def match(view: GraphView) -> Iterator[tuple[Node, bool]]:
    """Nodes that average, and whether TensorRT for RTX does so in float."""
    return ((node, not averages_in_int8(node)) for node in view.nodes if node.op in AVERAGES)


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """The input of average pools that lead to INT8 layers, or stand beside them."""
    wanted = wanted_slots(view)
    for node, in_float in match(view):
        if node.op not in AVERAGE_POOLS or "AveragePool" not in options.ops:
            continue
        slot = Slot(node=node.name, index=0)
        if options.builder.is_rtx and in_float:
            yield _beside(view, node, slot)
        elif any(Slot(node=u.node.name, index=u.index) in wanted for u in view.uses(node.outputs[0])):
            yield Opinion(
                slot=slot,
                stance=Stance.REQUEST,
                reason="an average pool between INT8 layers fuses with Q/DQ on both sides",
                spec=QuantSpec(),
            )


def _beside(view: GraphView, node: Node, slot: Slot) -> Opinion:
    """What RTX wants: the pool reads INT8 where others do, and the global average never."""
    if node.op == "AveragePool" and len(view.uses(node.inputs[0])) > 1:
        return Opinion(
            slot=slot,
            stance=Stance.REQUEST,
            reason="another layer reads these values in INT8, so the pool does too, and they are not written as float",
            spec=QuantSpec(),
            only_if_shared=True,
        )
    return Opinion(
        slot=slot,
        stance=Stance.VETO,
        reason="TensorRT for RTX averages in float: Q/DQ in front would only add a rounding",
    )


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Average pools that read a DequantizeLinear."""
    averaged = {Slot(node=node.name, index=0) for node, in_float in match(flow.view) if in_float}
    for pair in flow.pairs:
        for slot in pair.slots:
            node = flow.view.by_name[slot.node]
            if slot in averaged and not _saves_a_copy(flow, node):
                yield Violation(
                    node=node.name,
                    reason=f"{node.op} has Q/DQ on its input",
                    effect="it averages in float: the pair only adds a rounding",
                    fix="take the pair off; `qdqtool repair` does",
                )


def fix(context: RepairContext) -> Iterator[Change]:
    """Take the pair off such a pool; classic TensorRT averages in INT8, so only where TensorRT for RTX is meant."""
    if context.target is None:
        return
    for found in check(context.flow, context.target):
        yield from taken_off(context.view, context.view.by_name[found.node], (0,), found)


def _saves_a_copy(flow: Flow, pool: Node) -> bool:
    """Whether other layers read INT8 what the pool averages; a global average is part of the kernel in front of it."""
    pair = flow.origins.get(pool.inputs[0])
    if pool.op != "AveragePool" or pair is None:
        return False
    slots = (slot for other in flow.by_tensor.get(pair.tensor, (pair,)) for slot in other.slots)
    return any(flow.view.by_name[slot.node].op not in AVERAGES for slot in slots)


PLUGIN = Rule(
    code="QDQ131", severity=Severity.INFO, targets=frozenset({"rtx"}), place=place, check=check, fix=fix
)
