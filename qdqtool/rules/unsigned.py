"""UINT8 with zero point 0.

    x ─ Q (s=0.02, zero point 0 UINT8) ─ DQ      meant for 0 to 5.1, holds 0 to 2.54
    x ─ Q (s=0.04, zero point 0 INT8) ─ DQ       0 to 5.1

The builder warns `Defaulting to INT8` and reads the scale as that of an INT8 tensor: values above 127 steps, half of
the range that UINT8 was calibrated for, are cut off. Weights that are stored as UINT8 are refused.

Evidence: RTX 1.7.1 builds it, with the warning, as INT8 (chain_uint8_act_zp0).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Pairs of UINT8 whose zero point passes the parser."""
    for pair in flow.pairs:
        if pair.dtype is DType.UINT8 and pair.quantize is None and pair.kind is SlotKind.WEIGHT:
            yield Violation(
                node=pair.dequantize or "",
                reason="the weights are stored as UINT8",
                effect="the parser refuses it: Found unsupported input type of UINT8",
                fix="store them as INT8 with zero point 0; `qdqtool repair` does",
                severity=Severity.ERROR,
            )
        elif pair.dtype is DType.UINT8 and pair.zero_point and not any(pair.zero_point):
            yield Violation(
                node=pair.quantize or pair.dequantize or "",
                reason="the integers are UINT8 with zero point 0",
                effect="the builder takes them for INT8, so everything above 127 steps is cut off",
                fix="use INT8 with twice the scale; `qdqtool repair` converts the model",
            )


PLUGIN = Rule(code="QDQ102", formats=frozenset({"int8"}), severity=Severity.WARNING, check=check)
