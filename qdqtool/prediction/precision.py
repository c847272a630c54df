"""Which products compute in INT8 or in another format, and why the others do not."""

from __future__ import annotations

from dataclasses import dataclass

from qdqtool.core.dtypes import DType
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.graph.view import Node
from qdqtool.matching.flow import Flow
from qdqtool.matching.operands import Factor, State, both
from qdqtool.prediction.small import small


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


def judge(flow: Flow, node: Node, target: Target) -> Judgement:
    """What `node` computes in for a builder."""
    floating = float_type(flow, node)
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
