"""A number of scales that does not fit the tensor, or a channel axis that the tensor does not have.

Evidence: RTX 1.7.1: `The number of scales is not equal to the number of output channels`, `Axis must be in the range`.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import Asked, LintRule, Wrong


def find(flow: Flow, _asked: Asked) -> Iterator[Wrong]:
    """Pairs with a vector of scales along no axis of that length."""
    for pair in flow.pairs:
        shape = flow.view.info(pair.tensor).shape
        if pair.scale_shape is None or len(pair.scale_shape) != 1 or pair.axis is None or shape is None:
            continue
        if not 0 <= pair.axis < len(shape):
            wrong = f"the channel axis is {pair.axis}, the tensor has {len(shape)} dimensions"
        elif isinstance(shape[pair.axis], int) and len(pair.scale) not in {1, shape[pair.axis]}:
            wrong = (
                f"there are {len(pair.scale)} scales for the {shape[pair.axis]} channels of axis {pair.axis}"
            )
        else:
            continue
        yield Wrong(
            node=pair.quantize or pair.dequantize or "",
            reason=wrong,
            effect="the parser refuses it",
            fix="store one scale per channel of the axis, or a single scalar",
        )


PLUGIN = LintRule(code="QDQ116", severity=Severity.ERROR, find=find)
