"""What is in front of each factor of a product, and whether INT8 arithmetic can use it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from qdqtool.core.dtypes import DType
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.target import Target
from qdqtool.graph.view import Node
from qdqtool.matching.flow import Flow, is_int8
from qdqtool.trt.ops import weight_axis


class State(str, Enum):
    """What a factor brings to the product."""

    READY = "ready"
    BARE = "bare"
    OTHER_TYPE = "not INT8"
    COMPUTED = "computed scale"
    PER_CHANNEL = "per-channel activation"
    RANK_ONE = "activation scale of rank 1"
    HELD_BACK = "behind a Resize or Pad"
    BLOCKS = "block scales"
    WRONG_AXIS = "wrong channel axis"


@dataclass(frozen=True, kw_only=True, slots=True)
class Factor:
    """Input `index` of a product: the pair it comes from, and its state."""

    index: int
    pair: QdqPair | None
    state: State


def factor(flow: Flow, node: Node, index: int, target: Target) -> Factor:
    """The state of one factor for a builder (TensorRT for RTX is pickier about scales of rank 1)."""
    pair = flow.origin(node, index)
    return Factor(index=index, pair=pair, state=_state(flow, node, index, target, pair))


def both(flow: Flow, node: Node, target: Target) -> tuple[Factor, Factor]:
    """Both factors of a product."""
    return factor(flow, node, 0, target), factor(flow, node, 1, target)


def _state(flow: Flow, node: Node, index: int, target: Target, pair: QdqPair | None) -> State:
    if pair is None:
        return State.BARE
    if not is_int8(pair) and not (target.is_rtx and _is_int4_activation(pair)):
        return State.OTHER_TYPE
    shape = pair.scale_shape
    if shape is None:
        return State.COMPUTED
    if len(shape) > 1:
        return State.BLOCKS
    if pair.kind is SlotKind.ACTIVATION:
        if target.is_rtx and flow.is_held_back(node, index):
            return State.HELD_BACK
        return _activation(node, shape, target)
    axis = flow.channel_axis(node, index)
    rank = len(flow.view.info(node.inputs[index]).shape or ())
    expected = weight_axis(node, index, rank)
    if shape in {(), (1,)} or node.op == "ConvTranspose" or axis is None or not rank:
        return State.READY
    return State.READY if axis == expected else State.WRONG_AXIS


def _is_int4_activation(pair: QdqPair) -> bool:
    """Whether TensorRT for RTX widens a pair: the arithmetic is INT8, with 16 different values."""
    return pair.kind is SlotKind.ACTIVATION and pair.dtype is DType.INT4


def _activation(node: Node, shape: tuple[int, ...], target: Target) -> State:
    if shape == ():
        return State.READY
    if shape == (1,):
        return State.RANK_ONE if target.is_rtx and node.op.startswith("Conv") else State.READY
    return State.PER_CHANNEL
