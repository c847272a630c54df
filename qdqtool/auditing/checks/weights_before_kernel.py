"""A weight that was to be dequantized inside its kernel is dequantized before it.

Only the weight is stored in low bits, so that a memory-bound MatMul reads fewer bytes. Here a separate kernel converts
the whole weight to floats in every inference, and the MatMul reads the floats: more bytes move than without
quantization, although the engine file is small and the log does not mention it. Or the builder converts the weight to
float at build time and stores floats in the engine: nothing is saved (INT8 in blocks of three merged MatMul nodes with
one row).

    W (INT4) ── dequantize ── W (Half) ── gemm         written and read again
    W (INT4) ── gemm                                   dequantized inside

Evidence: builds with TensorRT for RTX 1.7.1: INT4 in a single block or per channel, INT8 in blocks, an odd number of
columns, one weight read by two products, convolutions, INT8 per channel with one row, and FP4 weights alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.claims import Says
from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import FLOAT
from qdqtool.matching.silent_float import BEFORE


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per node with low-bit weights only, if the engine holds the weight as floats."""
    for verdict in context.verdicts:
        before = verdict.realised.endswith(BEFORE)
        if verdict.asked.endswith("-weights") and (before or verdict.realised == FLOAT):
            held = f"the model stores {verdict.asked}, but the engine stores the weight as floats: {verdict.reason}"
            yield Draft(
                subject=verdict.node,
                reason=verdict.reason if before else held,
                fix=verdict.fix,
                bytes=verdict.bytes_lost,
                evidence=(
                    context.at_node(verdict.node),
                    *(context.at_layer(name) for name in verdict.layers),
                ),
            )


PLUGIN = Check(code="QDQ218", severity=Severity.WARNING, find=find, says=Says.IS_FLOAT)
