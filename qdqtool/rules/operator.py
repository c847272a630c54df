"""Operators that compute with integers themselves.

    Q ─ QLinearConv ─ DQ                     refused
    Q ─ DQ ─ Conv ─ Q ─ DQ (and w ─ DQ)      INT8

QLinearConv, ConvInteger, DynamicQuantizeLinear and the com.microsoft family are how onnxruntime executes INT8.
TensorRT knows only QuantizeLinear and DequantizeLinear around float operators.

Evidence: RTX 1.7.1 and all releases answer UNSUPPORTED_NODE (qlinearconv, dynamicquantizelinear).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import computes_integers


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Nodes of integer operators."""
    for node in flow.view.nodes:
        if computes_integers(node.op):
            yield Violation(
                node=node.name,
                reason=f"{node.op} computes with integers itself",
                effect="the parser knows no such operator",
                fix="export in Q/DQ format (onnxruntime: QuantFormat.QDQ); `qdqtool repair` converts most of them",
            )


PLUGIN = Rule(code="QDQ107", severity=Severity.ERROR, check=check)
