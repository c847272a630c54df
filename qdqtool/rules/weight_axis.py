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
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.matching.operands import Product, State, products
from qdqtool.matching.rule import Rule, Stage, Violation
from qdqtool.matching.weights import StoredWeight, stored_again
from qdqtool.trt.ops import weight_axis


def match(flow: Flow, target: Target) -> Iterator[tuple[Product, int, QdqPair]]:
    """Factors of products whose scales are not along the output channels, and their pairs."""
    for product in products(flow, target):
        for factor in product.factors:
            if factor.state is State.WRONG_AXIS and factor.pair is not None:
                yield product, factor.index, factor.pair


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Those beside a quantized activation: weights that are dequantized may be scaled along any axis."""
    for product, index, pair in match(flow, target):
        if product.weights_alone is not None or _fits_elsewhere(flow, pair):
            continue  # of scales that do not fit the axis the rule scale_length speaks
        node = product.node
        wanted = weight_axis(node, index, len(flow.view.info(node.inputs[index]).shape or ()))
        seen = flow.channel_axis(node, index)
        moved = "" if seen == pair.axis else f" (axis {pair.axis} where they are written)"
        yield Violation(
            node=node.name,
            reason=f"the scales of its weights go along axis {seen}{moved}, not along the output channels "
            f"(axis {wanted})",
            effect=f"{node.op} runs in float",
            fix=f"scale along the output channels, axis {wanted}; `qdqtool repair` does",
            products=(node.name,),
        )


def _fits_elsewhere(flow: Flow, pair: QdqPair) -> bool:
    shape = flow.view.info(pair.tensor).shape or ()
    axis = pair.axis
    return axis is None or not -len(shape) <= axis < len(shape) or shape[axis] != len(pair.scale)


def fix(context: RepairContext) -> Iterator[Change]:
    """Quantize weights again along their output channels, also of products whose activation has yet to get its pair."""
    astray = (pair for _, _, pair in match(context.flow, context.target or Target()))
    return stored_again(context, astray, _astray)


def _astray(weight: StoredWeight) -> str:
    if weight.reader is None or weight.axis is None or weight.moves:
        return ""  # where an operator stands between, `weight_path` stores them in front of the product
    return (
        f"scales along axis {weight.pair.axis} keep {weight.reader.op} in float, it needs axis {weight.axis}"
    )


PLUGIN = Rule(
    code="QDQ123",
    severity=Severity.WARNING,
    stage=Stage.LEGAL,
    after=("weight_path",),
    check=check,
    fix=fix,
)
