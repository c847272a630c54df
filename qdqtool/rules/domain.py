"""Q/DQ nodes of the domain com.microsoft.

    x ─ com.microsoft.QuantizeLinear ─ com.microsoft.DequantizeLinear ─ Conv
    x ─ QuantizeLinear ─ DequantizeLinear ─ Conv

They mean the same, and TensorRT for RTX reads them like ONNX's own. The standard does not know them: checkers, other
builders and converters may refuse the file. Only the types that opset 21 lacks are a reason to use them.

Evidence: RTX 1.7.1 builds com_microsoft_qdq as INT8, in FP32 and, with FP16 scales, in FP16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from qdqtool.core.findings import Severity
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import QDQ

_FOREIGN: Final = "com.microsoft"


def match(view: GraphView) -> Iterator[Node]:
    """Q and DQ nodes of a domain that is not ONNX's own."""
    return (node for node in view.nodes if node.op in QDQ and node.domain == _FOREIGN)


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs with such a node, each once."""
    foreign = {node.name for node in match(flow.view)}
    for pair in flow.pairs:
        if not foreign.isdisjoint({pair.quantize, pair.dequantize}):
            yield Violation(
                node=pair.quantize or pair.dequantize or "",
                reason=f"the nodes belong to the domain {_FOREIGN}",
                effect="TensorRT for RTX reads them; other readers of ONNX may not",
                fix="use the operators of the ONNX domain (opset 21 has all integer types), or `qdqtool repair`",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Move Q/DQ nodes to the default domain."""
    for node in match(context.view):
        context.nodes[node.name].domain = ""
        yield Change(
            subject=node.name,
            what=f"{_FOREIGN}.{node.op} became the standard operator",
            reason=f"TensorRT reads the {_FOREIGN} form in FP32 only",
            error=0.0,
        )


PLUGIN = Rule(
    code="QDQ108", severity=Severity.INFO, stage=Stage.WRITE_OUT, after=("operator",), check=check, fix=fix
)
