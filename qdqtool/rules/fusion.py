"""Nodes that a builder fuses into the kernel of a compute node: biases and activations.

# bias

Q/DQ with INT8 values on a bias.

    bias ─ Q ─ DQ ─ Conv        255 steps for what is added to 32-bit sums
    bias ──────── Conv          exact, in the same kernels

The bias is added after the INT8 multiplication, in float, so rounding it gains nothing. (INT32 biases are QDQ105.)

The fix stores the exact result of the DequantizeLinear, scale times integer, also for INT32 (QDQ105).

Evidence: RTX 1.7.1 multiplies the bias back to float inside the epilogue, in the same number of kernels (bias_int8).
Classic releases want the bias as constant weights, and some refuse one after DequantizeLinear.

# inside_fusion

Q/DQ between a layer and the activation or bias that fuses with it.

    Conv ─ Q ─ DQ ─ Relu ─ Q ─ DQ ─ Conv      two roundings
    Conv ─ Relu ─ Q ─ DQ ─ Conv               one

The layer, its bias and its activation are one kernel with a single rounding at its end. A pair between them is a
second rounding; classic TensorRT cannot fuse across it.

Evidence: RTX 1.7.1 rounds twice inside the epilogue (qdq_between_conv_relu, silu_inner_q). Classic: placement guide;
NVIDIA/TensorRT issue 2592.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.fixes import Change, SlotEdit
from qdqtool.core.placement import QdqPair, Slot, SlotKind
from qdqtool.core.target import Target
from qdqtool.core.wording import REPAIR
from qdqtool.graph.qdq.find import behind_pairs
from qdqtool.graph.qdq.flow import Flow, RepairContext, is_int8
from qdqtool.graph.qdq.stored import dequantize_pair
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.products import is_fused
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import AFFINE, FUSES_BEHIND_PRODUCT, GATES, PRODUCTS

FUSES_ACTIVATION = PRODUCTS | {"Add", "BatchNormalization"}
"""Operators that compute an activation after them in their own kernel."""


# --- bias ------------------------------------------------------------------------------------------------------------


def match_bias(flow: Flow) -> Iterator[tuple[Slot, QdqPair]]:
    """Yield the biases (third inputs) of compute nodes that have Q/DQ, and their pairs."""
    for node in flow.products():
        pair = flow.origins.get(node.inputs[2]) if len(node.inputs) > 2 else None
        if pair is not None:
            yield Slot(node=node.name, index=2), pair


def check_bias(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report biases with INT8 Q/DQ."""
    for slot, pair in match_bias(flow):
        if is_int8(pair):
            yield Violation(
                node=slot.node,
                reason="the bias of this node has Q/DQ",
                effect="the bias is rounded to 255 steps and added in float"
                if target.is_rtx
                else "the bias is rounded to 255 steps, and parsers that need constant biases refuse it",
                fix=f"store the bias as a float constant without Q/DQ; {REPAIR} does this",
            )


def fix_bias(context: RepairContext) -> Iterator[Change]:
    """Replace the DequantizeLinear of a bias, or of any INT32 constant, by its float result."""
    added = frozenset(slot for slot, _ in match_bias(context.flow))
    for pair in context.pairs:
        value = dequantize_pair(context, pair) if _is_bias(context, pair, added) else None
        if value is None:
            continue
        kind = context.scale_type(context.nodes[pair.dequantize or ""])
        context.redirect(
            context.result(pair), context.edit.constant(f"{pair.tensor}_float", value.astype(kind))
        )
        yield Change(
            subject=pair.tensor,
            what=f"{pair.dtype} constant became float",
            reason="TensorRT adds constants in float and refuses a DequantizeLinear on INT32",
            error=0.0,
        )


def _is_bias(context: RepairContext, pair: QdqPair, added: AbstractSet[Slot]) -> bool:
    if pair.dequantize is None or context.result(pair) in context.pinned:
        return False
    if context.integers(pair) == np.int32:
        return True
    stored = pair.kind is SlotKind.WEIGHT and context.view.constant_shape(pair.tensor)
    return bool(pair.slots) and all(
        slot in added or (stored and context.nodes[slot.node].op_type in AFFINE) for slot in pair.slots
    )


# --- inside_fusion ---------------------------------------------------------------------------------------------------


def match_inside_fusion(flow: Flow) -> Iterator[tuple[QdqPair, Node | None, Node]]:
    """Yield run-time Q/DQ pairs between two nodes that would fuse without the pair; also the producer and the reader."""
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


def check_inside_fusion(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report Q/DQ pairs between a compute node and an operator that would fuse with it."""
    for _, maker, reader in match_inside_fusion(flow):
        if maker is not None and maker.op in PRODUCTS and is_fused(flow.view, reader):
            yield Violation(
                node=reader.name,
                reason=f"a Q/DQ pair is between {maker.op} {maker.name} and its {reader.op}",
                effect="the values are rounded twice"
                + ("" if target.is_rtx else f", and {reader.op} is a separate float kernel"),
                fix=f"move the pair after {reader.name}; or run {REPAIR}, which removes the pair",
            )


def fix_inside_fusion(context: RepairContext) -> Iterator[Change]:
    """Remove Q/DQ pairs inside a fusion; move a pair before a Relu to the readers of its result."""
    inside = frozenset(pair.dequantize for pair, _, _ in match_inside_fusion(context.flow))
    for pair in context.pairs:
        reader, maker = context.consumer(pair), context.maker(pair.tensor)
        if reader is None or pair.quantize is None or pair.kind is SlotKind.WEIGHT:
            continue
        if pair.dequantize in inside:
            yield Change(
                edits=(SlotEdit(slot=pair.slots[0]),),
                subject=pair.quantize,
                what=f"pair removed between {maker or 'the input'} and {reader.op} {reader.name!r}",
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
                what=f"pair moved after Relu {reader.name!r}",
                reason="a Relu between a pair and a compute node keeps that node in float",
                error=0.0,
            )


def _feeds_compute(context: RepairContext, relu: Node) -> bool:
    """Return whether a Relu feeds only data inputs of compute nodes."""
    uses = context.view.uses(relu.outputs[0])
    pinned = relu.outputs[0] in context.pinned
    return bool(uses) and not pinned and all(use.node.op in PRODUCTS and use.index < 2 for use in uses)


def _inside_silu(view: GraphView, pair: QdqPair, reader: Node) -> bool:
    """Return True if `reader` multiplies x by sigmoid(x), and the Q/DQ pair is on one of these two."""
    if reader.op != "Mul" or len(reader.inputs) != 2:
        return False
    sources = [behind_pairs(view, name) for name in reader.inputs]
    for gate, value in (sources, sources[::-1]):
        node = view.producer(gate)
        if node is not None and node.op in GATES and behind_pairs(view, node.inputs[0]) == value:
            return pair.tensor in {gate, value}
    return False


PLUGIN = {
    "bias": Rule(
        code="QDQ148",
        formats=frozenset({"int8"}),
        severity=Severity.WARNING,
        stage=Stage.LEGAL,
        after=("shared_pair",),
        check=check_bias,
        fix=fix_bias,
    ),
    "inside_fusion": Rule(
        code="QDQ126", severity=Severity.WARNING, check=check_inside_fusion, fix=fix_inside_fusion
    ),
}
