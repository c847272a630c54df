"""A pair feeds an INT8 layer and a float operator.

    x ─ Q ─ DQ ─┬─ Conv            x ─┬─ Q ─ DQ ─ Conv
                └─ Sigmoid            └─ Sigmoid

One DequantizeLinear for both works; the float reader sees the rounded values. With a pair for the INT8 layer alone it
would see the exact ones, at the price of a float copy.

Evidence: RTX 1.7.1 dequantizes inside the float kernel (dq_fanout_float).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import INTEGER_READERS, PRODUCTS, quantization_commutes


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs with readers of both kinds."""
    for pair in flow.pairs:
        readers = [flow.view.by_name[slot.node] for slot in pair.slots]
        exact = [
            reader
            for reader in readers
            if reader.op not in INTEGER_READERS and not quantization_commutes(flow.view, reader)
        ]
        if exact and any(reader.op in PRODUCTS for reader in readers):
            yield Violation(
                node=exact[0].name,
                reason=f"it reads the rounded {pair.tensor} although it computes in float",
                effect="it sees INT8 precision without any gain in speed",
                fix=f"let {exact[0].name} read the tensor in front of the pair; `qdqtool repair` does",
            )


PLUGIN = Rule(code="QDQ141", severity=Severity.INFO, check=check)
