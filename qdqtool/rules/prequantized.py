"""Weights stored as INT8 behind a DequantizeLinear alone.

    w (INT8) ─ DQ ─ Conv           10 and newer
    w (FP32) ─ Q ─ DQ ─ Conv       everywhere

The file is about four times smaller. TensorRT 10 and newer and TensorRT for RTX read it; the documentation of 8.x asks
for FP32 weights in front of QuantizeLinear.

Evidence: RTX 1.7.1 builds chain_prequant as INT8; TensorRT 8 developer guide, explicit quantization.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Constants without a QuantizeLinear."""
    for pair in flow.pairs:
        if pair.kind is SlotKind.WEIGHT and pair.quantize is None and is_int8(pair) and pair.slots:
            yield Violation(
                node=pair.dequantize or "",
                reason=f"the weights {pair.tensor} are stored as INT8",
                effect="some 8.x releases refuse the model",
                fix="store FP32 weights behind Q and DQ, as --set insert.weights=qdq does",
            )


PLUGIN = Rule(
    code="QDQ145",
    formats=frozenset({"int8"}),
    severity=Severity.WARNING,
    check=check,
    targets=frozenset({"8"}),
)
