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
from qdqtool.graph.qdq.lift import Kind
from qdqtool.graph.qdq.repairing import RepairContext, is_pair_op
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Stage, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs with saturate=0."""
    unsaturated = {name for name, kinds in flow.irregular.items() if Kind.SATURATION in kinds}
    for pair in flow.pairs:
        if pair.dequantize in unsaturated:
            yield Violation(
                node=pair.quantize or "",
                reason="saturate is 0",
                effect="TensorRT clips to the largest value all the same, other runtimes give NaN",
                fix="write saturate=1 on the QuantizeLinear; `qdqtool repair` does",
            )


def fix(context: RepairContext) -> Iterator[Change]:
    """Take the attribute off: 1 is its default."""
    for node in context.edit.nodes:
        given = [one for one in node.attribute if one.name == "saturate"]
        if is_pair_op(node) and given and not given[0].i:
            node.attribute.remove(given[0])
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
