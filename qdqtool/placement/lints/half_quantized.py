"""Only one of the two factors of a product is quantized.

    x ─ Q ─ DQ ─┐                  x ─ Q ─ DQ ─┐
                 Conv  float                    Conv  INT8
    w ──────────┘                  w ─ Q ─ DQ ─┘

INT8 arithmetic needs both. With one of them the product is float, and the Q/DQ that is there still rounds the values
and costs kernels.

Evidence: RTX 1.7.1: weights bare leaves a fake-quantize kernel (chain_noweight), activation bare adds a kernel that
dequantizes the weights in every inference (chain_noact; folded for MatMul, matmul_w_only), one of two activations
gives `CastMulFc`, a dequantize inside a float product (matmul_one_q, matmul_a_only).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.placement.flow import Flow, is_int8
from qdqtool.placement.lintrule import LintRule, Violation
from qdqtool.placement.operands import State, both


def find(flow: Flow, asked: Target) -> Iterator[Violation]:
    """Products with one INT8 factor and one without any Q/DQ."""
    for node in flow.products():
        for ready, bare in (pair := both(flow, node, asked), pair[::-1]):
            if bare.state is not State.BARE or not is_int8(ready.pair):
                continue
            constant = flow.view.is_constant(node.inputs[bare.index])
            what = "its weights have" if constant else f"its input {bare.index} has"
            weight = ready.pair is not None and ready.pair.kind is SlotKind.WEIGHT
            yield Violation(
                node=node.name,
                reason=f"{what} no Q/DQ, the other factor has",
                effect=f"{node.op} runs in float"
                + (
                    " and its weights are dequantized in every inference"
                    if weight and node.op != "MatMul"
                    else ""
                ),
                fix=f"put Q/DQ on {node.inputs[bare.index]}, or take it off the other input; "
                + (
                    "`qdqtool repair` does the first"
                    if constant
                    else "`qdqtool repair --samples DATA` does the first"
                ),
            )


PLUGIN = LintRule(code="QDQ120", severity=Severity.WARNING, find=find)
