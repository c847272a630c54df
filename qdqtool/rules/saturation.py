"""A QuantizeLinear to FP8 that does not saturate.

    x ─ Q (FP8, saturate=0) ─ DQ      onnxruntime: NaN above 448. TensorRT: 448
    x ─ Q (FP8, saturate=1) ─ DQ      448 everywhere

TensorRT does not read the attribute, so that accuracy measured with another runtime is not that of the engine. The fix takes
it off; the engine stays the same, and weights beyond the range are QDQ188.

Evidence: RTX 1.7.1 writes the same engine bytes for both values; onnxruntime 1.31 gives NaN.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.trt.ops import QUANTIZE


def match(view: GraphView) -> Iterator[Node]:
    """QuantizeLinear with saturate=0."""
    return (node for node in view.nodes if node.op == QUANTIZE and not node.attribute("saturate", 1))


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """All of them."""
    for node in match(flow.view):
        yield Violation(
            node=node.name,
            reason="saturate is 0",
            effect="TensorRT clips to the largest value all the same, other runtimes give NaN",
            fix="write saturate=1 on the QuantizeLinear; `qdqtool repair` does",
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Take the attribute off: 1 is its default."""
    for found in match(context.view):
        node = context.nodes[found.name]
        kept = [one for one in node.attribute if one.name != "saturate"]
        del node.attribute[:]
        node.attribute.extend(kept)
        yield Change(
            subject=node.name,
            what="saturate=0 became saturate=1",
            reason="TensorRT clips in either case, and other runtimes give NaN beyond the range",
            error=0.0,
        )


PLUGIN = Rule(
    code="QDQ187",
    formats=frozenset({"fp8"}),
    severity=Severity.WARNING,
    stage=Stage.WRITE_OUT,
    after=("domain",),
    check=check,
    fix=fix,
)
