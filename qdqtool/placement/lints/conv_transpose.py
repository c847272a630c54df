"""Q/DQ on a ConvTranspose, built with TensorRT for RTX.

    x ─ Q ─ DQ ─┐
                 ConvTranspose      float, and a kernel for the weights
    w ─ Q ─ DQ ─┘

There is no INT8 kernel: the pair on the activation is a fake-quantize, the pair on the weights a kernel that
dequantizes them in every inference.

Evidence: RTX 1.7.1 (convtranspose_q, convtranspose_pt): `deconv` Float in, Float out.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import LintRule, Violation


def find(flow: Flow, _asked: Target) -> Iterator[Violation]:
    """Transposed convolutions with Q/DQ."""
    for node in flow.products():
        if node.op == "ConvTranspose" and any(flow.origin(node, index) for index in (0, 1)):
            yield Violation(
                node=node.name,
                reason="ConvTranspose has Q/DQ",
                effect="it runs in float, and its weights are dequantized in every inference",
                fix="take its Q/DQ off, or replace it by a nearest Resize and a Conv",
            )


PLUGIN = LintRule(code="QDQ130", severity=Severity.WARNING, find=find, targets=frozenset({"rtx"}))
