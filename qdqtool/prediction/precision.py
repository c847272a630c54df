"""Which products compute in INT8 or in another format, and why the others do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qdqtool.core.dtypes import DType
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.graph.view import Node
from qdqtool.matching.flow import Flow, is_int8
from qdqtool.matching.operands import Factor, State, both
from qdqtool.prediction.small import small
from qdqtool.trt.ops import COMPUTE, NOT_IMPORTED, PRODUCTS, computes_integers


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """The type a product computes in, the reason, and what is realised in the words of an audit."""

    precision: DType
    reason: str
    realised: str = "float"


_BECAUSE = {
    State.BARE: "has no Q/DQ",
    State.OTHER_TYPE: "is not INT8",
    State.COMPUTED: "has a scale that is computed at run time",
    State.PER_CHANNEL: "has one scale per channel",
    State.RANK_ONE: "has a scale of shape [1]",
    State.HELD_BACK: "is behind a Resize or Pad, which keeps INT8 values from it",
    State.BLOCKS: "has one scale per block",
    State.WRONG_AXIS: "has its scales along another axis than the output channels",
}


def computing(flow: Flow) -> Iterator[Node]:
    """Nodes that multiply: products, recurrences, attentions, and operators that compute with integers themselves."""
    products = {node.name for node in flow.products()}
    for node in flow.view.nodes:
        if node.name in products or node.op in COMPUTE - PRODUCTS or computes_integers(node.op):
            yield node


def judge(flow: Flow, node: Node, target: Target) -> Judgement:
    """What a node of `computing` computes in for a builder."""
    floating = float_type(flow, node)
    if node.op not in PRODUCTS:
        return _other_operator(flow, node, target, floating)
    other = small(flow, node, target)
    if other is not None:
        return Judgement(
            precision=other.precision or floating, reason=other.reason, realised=other.realised or "float"
        )
    factors = both(flow, node, target)
    for factor in factors:
        if factor.state is not State.READY:
            return Judgement(precision=floating, reason=f"its input {factor.index} {_BECAUSE[factor.state]}")
    objection = _rtx_objection(flow, node) if target.is_rtx else _classic_objection(flow, node, factors)
    if objection:
        return Judgement(precision=floating, reason=objection)
    return Judgement(precision=DType.INT8, reason="both of its factors are INT8", realised="int8")


def _other_operator(flow: Flow, node: Node, target: Target, floating: DType) -> Judgement:
    """What is not Conv, ConvTranspose, Gemm or MatMul; Einsum alone has INT8 kernels, in TensorRT for RTX."""
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


def _rtx_objection(flow: Flow, node: Node) -> str:
    if node.op == "ConvTranspose":
        return "there is no INT8 kernel for ConvTranspose"
    if node.name in flow.one_query and float_type(flow, node) is DType.FLOAT32:
        return "its attention has one query, for which the fused kernel multiplies floats"
    if node.op == "Conv":
        for reader in flow.readers(node.outputs[0]):
            pairs = [flow.origins.get(tensor) for tensor in reader.inputs] if reader.op == "Add" else []
            if any(pair is not None and pair.scale_shape == (1,) for pair in pairs):
                return f"the scale of the shortcut at {reader.name} has shape [1]"
    return ""


def _classic_objection(flow: Flow, node: Node, factors: tuple[Factor, Factor]) -> str:
    for factor in factors:
        pair = factor.pair
        between = flow.view.producer(node.inputs[factor.index])
        if pair is None or between is None or pair.kind is not SlotKind.WEIGHT:
            continue
        if between.name != pair.dequantize:
            return f"{between.op} stands between the DequantizeLinear and its weights"
    return ""
