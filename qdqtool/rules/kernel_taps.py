"""An FP8 convolution with a large kernel.

    x ─ Q (FP8) ─ DQ ─ Conv 7x7      float, behind a fake-quantize and a weight-dequantize kernel
    x ─ Q (INT8) ─ DQ ─ Conv 7x7     INT8

FP8 convolutions take up to 32 kernel taps, height times width times depth. The stems of ResNets (7x7) and patch
embeddings of vision transformers (16x16) have more; INT8 has no such limit.

Evidence: RTX 1.7.1 for SM89, SM120 and SM121: 1x32, 4x8, 5x6 and 3x3x3 are FP8; 1x33, 3x11, 6x6, 7x7, 8x8, 16x16 and a
depthwise 7x7 are Half. The log has no line on it.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.advice import repairing
from qdqtool.core.findings import Severity
from qdqtool.core.quant_format import FP8
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.operands import products
from qdqtool.matching.rule import Rule, Violation
from qdqtool.matching.silent_float import too_many_taps


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Convolutions with both factors in FP8 and too many taps."""
    for product in products(flow, target):
        node = product.node
        if node.op != "Conv" or product.arithmetic != FP8.name:
            continue
        objection = too_many_taps(flow.view.info(node.inputs[1]).shape or ())
        if objection is not None:
            yield Violation(
                node=node.name,
                reason=objection[0],
                effect="Conv runs in float, its input is rounded and its weights are dequantized in every inference",
                fix=f"{objection[1]}; {repairing(to_float=[node.name])} does the second",
                products=(node.name,),
            )


PLUGIN = Rule(
    code="QDQ183",
    formats=frozenset({"fp8"}),
    severity=Severity.WARNING,
    targets=frozenset({"rtx"}),
    check=check,
)
