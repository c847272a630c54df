"""As many scales as channels, and as many zero points as scales.

One scale stands for the whole tensor; several must be as many as the tensor has entries along their axis, and a zero
point has the shape of its scale.

Evidence: RTX 1.7.1 says `K == scaleSize` and `zeroPointSize == scaleSize` (weight_scale_count, zero_point_count).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.qdq import QdqPair
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import Asked, LintRule, Wrong


def find(flow: Flow, _asked: Asked) -> Iterator[Wrong]:
    """Pairs whose scales or zero points do not fit the tensor or each other."""
    for pair in flow.pairs:
        reason = _misfit(flow, pair)
        if reason:
            yield Wrong(
                node=pair.quantize or pair.dequantize or "",
                reason=reason,
                effect="the parser refuses the model",
                fix="give one scale and one zero point per channel, or one for the whole tensor; export again",
            )


def _misfit(flow: Flow, pair: QdqPair) -> str:
    """What does not fit; "" where everything does, or nobody can tell."""
    count = len(pair.scale)
    if pair.scale_shape is None or len(pair.scale_shape) > 1:
        return ""
    if not count:
        return "its scale has no values"
    if pair.zero_point and len(pair.zero_point) != count:
        return f"{len(pair.zero_point)} zero points for {count} scales"
    shape = flow.view.info(pair.tensor).shape
    if count == 1 or shape is None or pair.axis is None or not 0 <= pair.axis < len(shape):
        return ""
    channels = shape[pair.axis]
    wrong = isinstance(channels, int) and channels != count
    return f"{count} scales for {channels} entries along axis {pair.axis}" if wrong else ""


PLUGIN = LintRule(code="QDQ116", severity=Severity.ERROR, find=find)
