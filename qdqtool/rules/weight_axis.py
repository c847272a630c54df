"""Weights with their scales along the wrong axis.

    w [32, 48] ─ Q (32 scales, axis 0) ─ DQ ─ MatMul      float
    w [32, 48] ─ Q (48 scales, axis 1) ─ DQ ─ MatMul      INT8

Scales must go with output channels, so that one factor per channel can be applied behind the sum: axis 0 for Conv and
for Gemm with transB, the last axis for MatMul and for Gemm without.

Evidence: RTX 1.7.1 multiplies in float: `CastMulFc` for MatMul along K (matmul_w_axis0), and for a Conv along its
input channels a kernel that dequantizes the weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.flow import Flow
from qdqtool.matching.operands import State, products
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import StoredWeight, stored_again
from qdqtool.trt.ops import weight_axis


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products whose weight scales are not along the output channels."""
    for product in products(flow, target):
        node = product.node
        if product.weights_alone is not None:
            continue  # dequantized weights may be scaled along any axis
        for factor in product.factors:
            if factor.state is State.WRONG_AXIS and factor.pair is not None:
                rank = len(flow.view.info(node.inputs[factor.index]).shape or ())
                wanted = weight_axis(node, factor.index, rank)
                seen, written = flow.channel_axis(node, factor.index), factor.pair.axis
                moved = "" if seen == written else f" (axis {written} where they are written)"
                yield Violation(
                    node=node.name,
                    reason=f"the scales of its weights go along axis {seen}{moved}, not along the output channels "
                    f"(axis {wanted})",
                    effect=f"{node.op} runs in float",
                    fix=f"scale along the output channels, axis {wanted}; `qdqtool repair` does",
                    products=(node.name,),
                )


def fix(context: RepairContext) -> Iterator[Change]:
    """Quantize weights again along their output channels."""
    return stored_again(context, _astray)


def _astray(_context: RepairContext, weight: StoredWeight) -> str:
    reader, pair, axis = weight.reader, weight.pair, weight.axis
    if reader is None or axis is None or weight.moves or reader.op == "ConvTranspose":
        return ""  # which axis a ConvTranspose wants differs by release
    if len(pair.scale) < 2 or pair.axis == axis:
        return ""
    return f"scales along axis {pair.axis} keep {reader.op} in float, it needs axis {axis}"


PLUGIN = Rule(
    code="QDQ123",
    severity=Severity.WARNING,
    stage=Stage.LEGAL,
    after=("weight_path",),
    check=check,
    fix=fix,
)
