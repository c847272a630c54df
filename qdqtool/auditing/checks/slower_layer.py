"""A layer is slower than its counterpart in the engine this one is compared with.

Measured times of both engines, aligned by ONNX node. INT8 is not faster everywhere: small layers, kernels without
tensor cores and layers that need extra conversions can be slower than in FP16.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.auditing.check import Check, Draft
from qdqtool.auditing.context import AuditContext
from qdqtool.core.findings import Severity

_LEAST = 0.05
"""Smallest slowdown that is reported, as a share; less is noise."""


def find(context: AuditContext) -> Iterator[Draft]:
    """Yield one draft per pair of layers if the second takes at least 5 % longer, the worst first."""
    if context.compared is None:
        return
    pairs = [pair for pair in context.compared.pairs if pair.ms is not None and pair.left.ms]
    slower = [pair for pair in pairs if (pair.ms or 0.0) > _LEAST * (pair.left.ms or 0.0)]
    for pair in sorted(slower, key=lambda pair: -(pair.ms or 0.0)):
        yield Draft(
            subject=pair.right.layers[0],
            reason=f"takes {pair.right.ms:.4f} ms in {pair.right.arithmetic} instead of {pair.left.ms:.4f} ms in "
            f"{pair.left.arithmetic} in {context.compared.left.name}",
            fix="keep this node float, or look for conversions and kernels without tensor cores around it",
            layers=pair.right.layers,
            bytes=pair.bytes,
            evidence=tuple(context.at_layer(name) for name in pair.right.layers),
        )


PLUGIN = Check(code="QDQ216", severity=Severity.WARNING, find=find)
