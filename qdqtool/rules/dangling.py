"""A QuantizeLinear whose integers nobody reads, or a DequantizeLinear whose values nobody reads.

    x ─┬─ Q            nobody reads it
       └─ Conv

The builder drops both. They show that an exporter or an edit lost the other half.

Evidence: RTX 1.7.1 builds the same kernels with and without (dangling_q).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Halves without effect."""
    for pair in flow.pairs:
        name = pair.dequantize or pair.quantize or ""
        result = flow.view.by_name[name].outputs[0]
        if not flow.view.uses(result) and not flow.view.is_output(result):
            yield Violation(
                node=name,
                reason="nobody reads its result",
                effect="it is dropped",
                fix="remove the node; `qdqtool repair` does",
            )


PLUGIN = Rule(code="QDQ140", severity=Severity.INFO, check=check)
