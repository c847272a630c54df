"""Q/DQ with INT8 values on a bias.

    bias ─ Q ─ DQ ─ Conv        255 steps for what is added to 32-bit sums
    bias ──────── Conv          exact, in the same kernels

The bias is added behind the INT8 product, in float, so rounding it gains nothing. (INT32 biases are QDQ105.)

The fix stores what the DequantizeLinear makes, also of INT32 (QDQ105): scale times integer, exactly.

Evidence: RTX 1.7.1 multiplies the bias back to float inside the epilogue, in as many kernels (bias_int8). Classic
releases want the bias as constant weights, and some refuse one behind DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import numpy as np

from qdqtool.core.findings import Severity
from qdqtool.core.placement import Slot, SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.qdq.stored import dequantized
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import AFFINE


def match(flow: Flow) -> Iterator[tuple[Slot, QdqPair]]:
    """The third inputs of products that have Q/DQ, and their pairs."""
    for node in flow.products():
        pair = flow.origins.get(node.inputs[2]) if len(node.inputs) > 2 else None
        if pair is not None:
            yield Slot(node=node.name, index=2), pair


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Such inputs in INT8."""
    for slot, pair in match(flow):
        if is_int8(pair):
            yield Violation(
                node=slot.node,
                reason="its bias has Q/DQ",
                effect="the bias is rounded to 255 steps and added in float"
                if target.is_rtx
                else "the bias is rounded to 255 steps, and parsers that want constant biases refuse it",
                fix="store the bias as a float constant without Q/DQ; `qdqtool repair` does",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Store what the DequantizeLinear of a bias, or of any INT32 constant, would make."""
    added = frozenset(slot for slot, _ in match(context.flow))
    for pair in context.pairs:
        value = dequantized(context, pair) if _is_bias(context, pair, added) else None
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


PLUGIN = Rule(
    code="QDQ148",
    formats=frozenset({"int8"}),
    severity=Severity.WARNING,
    stage=Stage.LEGAL,
    after=("shared_pair",),
    check=check,
    fix=fix,
)
