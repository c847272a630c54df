"""A scale that is zero, negative or not a number.

A scale of zero often stands for a channel or a tensor that never fired, or for a small FP32 scale that became FP16.

Evidence: RTX 1.7.1 says `Scale coefficients must all be positive` (scale_zero, scale_negative, scale_nan; a tiny scale
turned FP16).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from qdqtool.core.findings import Severity
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import Asked, LintRule, Wrong


def find(flow: Flow, _asked: Asked) -> Iterator[Wrong]:
    """Pairs with a scale that no quantization can use."""
    for pair in flow.pairs:
        bad = [value for value in pair.scale if not (isfinite(value) and value > 0)]
        if bad:
            yield Wrong(
                node=pair.quantize or pair.dequantize or "",
                reason=f"{len(bad)} of {len(pair.scale)} scales are not positive numbers, the first is {bad[0]:g}",
                effect="the parser refuses it: Scale coefficients must all be positive",
                fix="calibrate again, or give dead channels a small positive scale such as 1e-5",
            )


PLUGIN = LintRule(code="QDQ103", severity=Severity.ERROR, find=find)
