"""INT4 where it cannot be: together with INT8 activations, on activations, or before TensorRT 10.

    x ─ Q ─ DQ ─────── MatMul      fails: INT8 times INT4
    w (INT4) ─ DQ ─────┘

    x ──────────────── MatMul      one float product
    w (INT4) ─ DQ ─────┘

INT4 is for weights only: the product itself is computed in float behind a dequantize.

Evidence: RTX 1.7.1 fuses INT4 block weights into a float product (int4_block128) and fails with a check when the
activation is INT8 (int4_block128_actint8); an INT4 activation becomes an INT8 one of 16 values (int4_activation). INT4 arrived with TensorRT 10.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.placement import SlotKind
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow, is_int8
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """INT4 pairs in a place where they do not build."""
    for pair in flow.pairs:
        if pair.dtype is not DType.INT4:
            continue
        node = pair.dequantize or pair.quantize or ""
        if target.family == "8":
            yield Violation(
                node=node,
                reason="the integers are INT4",
                effect="TensorRT 8 has no INT4",
                fix="use INT8, or TensorRT 10 or newer",
            )
        elif pair.kind is SlotKind.ACTIVATION:
            yield Violation(
                node=node,
                reason="an activation is INT4",
                effect="it is rounded to 16 steps, and the arithmetic is INT8 all the same"
                if target.is_rtx
                else "the builder refuses it: INT4 is for weights only",
                fix="use INT8 for activations",
                severity=Severity.WARNING if target.is_rtx else None,
            )
        else:
            for slot in pair.slots:
                other = flow.origin(flow.view.by_name[slot.node], 1 - slot.index) if slot.index < 2 else None
                if is_int8(other):
                    yield Violation(
                        node=slot.node,
                        reason="its weights are INT4 and its activation is INT8",
                        effect="the builder fails: no kernel multiplies the two",
                        fix="leave the activation float, or make the weights INT8",
                    )


PLUGIN = Rule(code="QDQ109", severity=Severity.ERROR, check=check)
