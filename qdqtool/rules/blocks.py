"""INT8 weights with one scale per block.

    weights INT8 [256, 128] ─ DQ (scales [4, 128]) ─ MatMul      float, or no build
    weights INT8 [256, 128] ─ DQ (scales [128]) ─ MatMul         INT8

Blocks are for INT4, FP4 and FP8; INT8 kernels take one scale per tensor or per output channel.

Evidence: RTX 1.7.1 writes the weights back to float in a kernel of their own and multiplies in float (int8_block64);
with an INT8 activation on the other side the build fails with a check.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.dtypes import DType
from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.matching.flow import Flow, is_int8
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """INT8 pairs whose scale has two dimensions or more."""
    for pair in flow.pairs:
        if pair.dtype is not DType.INT8 or pair.scale_shape is None or len(pair.scale_shape) < 2:
            continue
        meets = any(
            is_int8(flow.origin(flow.view.by_name[slot.node], 1 - slot.index))
            for slot in pair.slots
            if slot.index < 2 and len(flow.view.by_name[slot.node].inputs) > 1
        )
        yield Violation(
            node=pair.dequantize or pair.quantize or "",
            reason=f"INT8 with one scale per block, {'x'.join(map(str, pair.scale_shape))} of them"
            if len(pair.scale) != 1
            else f"its one scale has {len(pair.scale_shape)} dimensions",
            effect="the build fails"
            if meets
            else "the weights are written back to float and multiplied in float",
            fix="use one scale per output channel"
            if len(pair.scale) != 1
            else "store the scale as a scalar, shape []",
            severity=Severity.ERROR if meets else None,
        )


PLUGIN = Rule(code="QDQ110", severity=Severity.WARNING, check=check)
