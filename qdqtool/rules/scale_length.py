"""A number of scales or zero points that does not fit, or a channel axis that the tensor does not have.

    w [16, 16, 3, 3] ─ Q (5 scales, axis 0) ─ DQ ─ Conv       refused
    w [16, 16, 3, 3] ─ Q (16 scales, axis 0) ─ DQ ─ Conv      INT8

Evidence: RTX 1.7.1: `The number of scales is not equal to the number of output channels`, `zeroPointSize == scaleSize`,
`Axis must be in the range`.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.qdq import QdqPair
from qdqtool.core.target import Target
from qdqtool.core.wording import counted
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.stored import fitting_axis
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs with a vector of scales along no axis of that length, or with another number of zero points."""
    for pair in flow.pairs:
        reason = _misfit(flow, pair)
        if reason:
            axis = fitting_axis(flow.view, pair)
            yield Violation(
                node=pair.quantize or pair.dequantize or "",
                reason=reason,
                effect="the parser refuses it",
                fix=_way(flow, pair)
                if axis is None
                else f"write axis={axis}, the only one with {counted(len(pair.scale), 'channel')}; `qdqtool repair` does",
            )


def _way(flow: Flow, pair: QdqPair) -> str:
    """What quantizes float weights after a Q again, or takes a Q off; stored integers have lost their values with their scales."""
    wanted = "store one scale and one zero point per channel of the axis, or a single scalar of each"
    readers = flow.products_of(pair)
    if pair.quantize is None:
        return f"nothing to do by a command: what the stored values stand for is lost with their scales; in the tool that wrote them, {wanted}"
    if pair.kind is SlotKind.WEIGHT and readers:
        return f"{wanted}; {repairing(to_int8=readers)} quantizes the weights again"
    return f"{wanted}; {repairing(to_float=readers or [pair.quantize])} takes the Q/DQ off"


def _misfit(flow: Flow, pair: QdqPair) -> str:
    if pair.zero_point and pair.scale and len(pair.zero_point) != len(pair.scale):
        return (
            f"there are {counted(len(pair.zero_point), 'zero point')} for {counted(len(pair.scale), 'scale')}"
        )
    shape = flow.view.info(pair.tensor).shape
    if pair.scale_shape is None or len(pair.scale_shape) != 1 or pair.axis is None or shape is None:
        return ""
    if len(pair.scale) == 1:
        return ""  # a single one fits any tensor, and its axis means nothing
    for name in filter(None, (pair.quantize, pair.dequantize)):
        axis = int(flow.view.by_name[name].attribute("axis", 1))
        if not -len(shape) <= axis < len(shape):
            return f"the channel axis of {name} is {axis}, the tensor has {counted(len(shape), 'dimension')}"
    channels = shape[pair.axis]
    if isinstance(channels, int) and len(pair.scale) != channels:
        return (
            f"there are {counted(len(pair.scale), 'scale')} for the {channels} channels of axis {pair.axis}"
        )
    return ""


PLUGIN = Rule(code="QDQ116", severity=Severity.ERROR, check=check)
