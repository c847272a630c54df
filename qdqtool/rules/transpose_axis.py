"""ConvTranspose weights scaled along the axis that another release wants.

    weights [in, out, h, w] ─ Q(axis=1) ─ DQ(axis=1) ─ ConvTranspose      10.1 and newer, 9.x, 8.0 to 8.2
    weights [in, out, h, w] ─ Q(axis=0) ─ DQ(axis=0) ─ ConvTranspose      8.4 to 8.6, 10.0

NVIDIA's own tools changed it: output channels (axis 1) in 8.0 and 8.2, input channels (axis 0) in 8.4 to 8.6, axis 1
in 9.3, axis 0 in 10.0 and axis 1 by 10.16. With the wrong one the layer is float, or in some releases wrong.

Evidence: pytorch-quantization of the releases 8.0 to 10.16; NVIDIA/TensorRT issue 2380. Check on your device: one
scale for the whole tensor is safe everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.rule import CLASSIC, Rule, Violation


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Per-channel ConvTranspose weights off the release's axis."""
    expected = 0 if target.scales_transposed_inputs else 1
    for node in flow.products():
        pair = flow.origin(node, 1) if node.op == "ConvTranspose" else None
        if pair is not None and len(pair.scale) > 1 and pair.axis != expected:
            yield Violation(
                node=node.name,
                reason=f"the scales of its weights go along axis {pair.axis}",
                effect=f"TensorRT {target.name} wants axis {expected}: the layer may run in float",
                fix=f"scale along axis {expected}, or use one scale for the whole tensor",
            )


PLUGIN = Rule(code="QDQ137", severity=Severity.WARNING, check=check, targets=CLASSIC)
