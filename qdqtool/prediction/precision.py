"""Which products compute in the format that is asked for, and why the others do not: what the rules find, per product."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qdqtool.core.dtypes import DType
from qdqtool.core.quant_format import FLOAT, FORMATS, INT4, INT8
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.view import Node
from qdqtool.matching.losses import losses
from qdqtool.matching.operands import Product, products
from qdqtool.matching.rule import Violation
from qdqtool.trt.ops import COMPUTE, NOT_IMPORTED, PRODUCTS, computes_integers


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The type a product computes in, the reason, and what is realised in the words of an audit."""

    precision: DType
    reason: str
    realised: str = FLOAT


def judge(flow: Flow, target: Target) -> dict[str, Judgement]:
    """What every node that multiplies computes in for a builder, by its name.

    Such are products, recurrences, attentions, and operators that compute with integers themselves.
    """
    lost = losses(flow, target)
    judged = {product.node.name: _judgement(flow, product, lost) for product in products(flow, target)}
    for node in flow.view.nodes:
        if node.op in COMPUTE - PRODUCTS or computes_integers(node.op):
            judged[node.name] = _other_operator(flow, node, target)
    return judged


def _judgement(flow: Flow, product: Product, lost: Mapping[str, Violation]) -> Judgement:
    floating, asked = float_type(flow, product.node), product.asked
    violation = lost.get(product.node.name)
    if violation is not None:
        realised = violation.realised
        reason = f"{violation.reason}: {violation.effect}"
        precision = violation.computed or _type(realised, floating)
        return Judgement(precision=precision, reason=reason, realised=realised)
    if asked == FLOAT:
        return Judgement(precision=floating, reason="its input 0 has no Q/DQ")
    if product.weights_alone is not None:
        stored = product.weights_alone
        bare = 1 - stored.index
        reason = (
            f"its input {bare} has no Q/DQ; its {stored.format} weights are dequantized inside the kernel"
        )
        return Judgement(precision=floating, reason=reason, realised=asked)
    if not product.arithmetic:
        # INT4 activations are widened: INT8 arithmetic with 16 different values.
        reason = "both of its factors are INT8, the INT4 one after widening"
        return Judgement(precision=DType.INT8, reason=reason, realised=INT8.name)
    if asked not in FORMATS or asked == INT4.name:
        return Judgement(precision=floating, reason=f"there is no arithmetic in {asked}")
    reason = f"both of its factors are {asked.upper()}"
    return Judgement(precision=_type(asked, floating), reason=reason, realised=asked)


def _type(realised: str, floating: DType) -> DType:
    return FORMATS[realised].dtype if realised in FORMATS else floating


def _other_operator(flow: Flow, node: Node, target: Target) -> Judgement:
    """What is not Conv, ConvTranspose, Gemm or MatMul; Einsum alone has INT8 kernels, in TensorRT for RTX."""
    floating = float_type(flow, node)
    if node.op in NOT_IMPORTED or computes_integers(node.op):
        return Judgement(
            precision=DType.UNKNOWN, reason=f"TensorRT does not import {node.op}", realised="unknown"
        )
    factors = [flow.origin(node, index) for index in range(min(2, len(node.inputs)))]
    if node.op == "Einsum" and target.is_rtx:
        if len(factors) > 1 and all(map(is_int8, factors)):
            return Judgement(precision=DType.INT8, reason="both of its factors are INT8", realised="int8")
        return Judgement(precision=floating, reason="one of its factors has no Q/DQ")
    return Judgement(precision=floating, reason=f"there is no INT8 kernel for {node.op}")


def float_type(flow: Flow, node: Node) -> DType:
    """The float type a node computes in where it is not INT8."""
    for tensor in (*node.outputs, *node.inputs):
        dtype = flow.view.info(tensor).dtype
        if dtype.is_float:
            return dtype
    return DType.UNKNOWN
