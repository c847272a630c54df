"""A zero point that is not zero.

    x ─ Q (zero point 128, UINT8) ─ DQ      refused
    x ─ Q (zero point 0, INT8) ─ DQ

TensorRT quantizes symmetrically: its parser refuses the node. Asymmetric UINT8 exists for DLA only (from 10.11 on,
behind a parser flag).

Evidence: RTX 1.7.1 and TensorRT 8.x to 11 say `Assertion failed: shiftIsAllZeros(zeroPoint)`.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs whose zero point is another number, or is computed."""
    for pair in flow.pairs:
        node = pair.quantize or pair.dequantize or ""
        if any(pair.zero_point):
            values = sorted(set(pair.zero_point))
            shown = str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
            yield Violation(
                node=node,
                reason=f"the zero point is {shown}",
                effect="the parser refuses it: shiftIsAllZeros(zeroPoint)",
                fix="quantize symmetrically with zero point 0; `qdqtool repair` converts the model",
            )
        elif not pair.zero_point and pair.scale:
            yield Violation(
                node=node,
                reason="the zero point is computed at run time",
                effect="the parser refuses it: a zero point must be a constant",
                fix="store the zero point 0 as a constant",
            )


PLUGIN = Rule(code="QDQ101", severity=Severity.ERROR, check=check)
