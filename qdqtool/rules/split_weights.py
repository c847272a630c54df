"""Stored weights with a scale per channel of the product that makes queries, keys and values.

    w (INT8) ─ DQ ─ MatMul ─ Add ─ Split ─ q, k, v        float, behind a kernel that dequantizes the weight
    w (FP32) ─ Q ─ DQ ─ MatMul ─ Add ─ Split ─ q, k, v    INT8

The builder cuts the weight [K, 3N] into three, Q and all. Behind a DequantizeLinear alone it cuts floats, and the product
is float; the log has no line on it. One scale for the whole weight has no such trouble.

Evidence: RTX 1.7.1 for SM86, 89 and 120, INT8 and FP8, per channel and per tensor, stored and behind Q and DQ, in 20 forms of
one block; all six attentions of timm's test_vit.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import FP8, INT8
from qdqtool.core.target import Target
from qdqtool.graph.beside_attention import is_split
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.operands import products
from qdqtool.matching.rule import Rule, Violation
from qdqtool.matching.silent_float import SPLIT_REASON

_FIX = "write float weights behind Q and DQ (--set insert.weights=qdq; `qdqtool insert` does here), or use one scale for the weight"


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products in INT8 or FP8 whose split weight is stored with a scale per channel."""
    for product in products(flow, target):
        node = flow.plain.by_name.get(product.node.name)
        if product.arithmetic not in {INT8.name, FP8.name} or node is None:
            continue
        stored = any(
            factor.fixed
            and factor.pair is not None
            and factor.pair.quantize is None
            and prod(factor.pair.scale_shape or ()) > 1
            for factor in product.factors
        )
        if stored and is_split(flow.plain, node):
            yield Violation(
                node=node.name,
                reason=SPLIT_REASON,
                effect=f"{node.op} runs in float, and its weights are dequantized in every inference",
                fix=_FIX,
                products=(node.name,),
            )


PLUGIN = Rule(
    code="QDQ192",
    formats=frozenset({"int8", "fp8"}),
    severity=Severity.WARNING,
    targets=frozenset({"rtx"}),
    check=check,
)
