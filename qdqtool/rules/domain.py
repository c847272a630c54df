"""Q/DQ nodes of the domain com.microsoft.

    x ─ com.microsoft.QuantizeLinear ─ com.microsoft.DequantizeLinear ─ Conv
    x ─ QuantizeLinear ─ DequantizeLinear ─ Conv

They mean the same, and TensorRT for RTX reads them like ONNX's own. The standard does not know them: checkers, other
builders and converters may refuse the file. Only the types that opset 21 lacks are a reason to use them.

Evidence: RTX 1.7.1 builds com_microsoft_qdq as INT8, in FP32 and, with FP16 scales, in FP16.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.repairing import RepairContext, is_pair_op
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Stage, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs of a domain that is not ONNX's own."""
    for pair in flow.pairs:
        if pair.domain:
            yield Violation(
                node=pair.quantize or pair.dequantize or "",
                reason=f"the nodes belong to the domain {pair.domain}",
                effect="TensorRT for RTX reads them; other readers of ONNX may not",
                fix="use the operators of the ONNX domain (opset 21 has all integer types), or `qdqtool repair`",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Move Q/DQ nodes to the default domain."""
    for node in context.edit.nodes:
        if is_pair_op(node) and node.domain == "com.microsoft":
            node.domain = ""
            yield Change(
                subject=node.name,
                what=f"com.microsoft.{node.op_type} became the standard operator",
                reason="TensorRT reads the com.microsoft form in FP32 only",
                error=0.0,
            )


PLUGIN = Rule(
    code="QDQ108", severity=Severity.INFO, stage=Stage.WRITE_OUT, after=("operator",), check=check, fix=fix
)
