"""A QuantizeLinear to FP8 that does not saturate.

    x ─ Q (FP8, saturate=0) ─ DQ      onnxruntime: NaN above 448. TensorRT: 448
    x ─ Q (FP8, saturate=1) ─ DQ      448 everywhere

TensorRT does not read the attribute, so that accuracy measured with another runtime is not that of the engine.

Evidence: RTX 1.7.1 writes the same engine bytes for both values; onnxruntime 1.31 gives NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.lift import Kind
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs with saturate=0."""
    for node, kinds in flow.irregular.items():
        if Kind.SATURATION in kinds:
            yield Violation(
                node=node,
                reason="saturate is 0",
                effect="TensorRT clips to the largest value all the same, other runtimes give NaN",
                fix="write saturate=1 on the QuantizeLinear",
            )


PLUGIN = Rule(code="QDQ187", severity=Severity.WARNING, check=check)
