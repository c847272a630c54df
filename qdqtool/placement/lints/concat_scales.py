"""The branches of a Concat are quantized with different scales.

    a ─ Q(s=0.05) ─ DQ ─┐
                         Concat ─ Conv      float; with one scale for a and b INT8
    b ─ Q(s=0.10) ─ DQ ─┘

With Q/DQ behind the Concat each branch is quantized twice; without, the INT8 values have no common scale, so the
Concat and the next layer are float.

Evidence: RTX 1.7.1: concat_diff_noafter (the next Conv runs in float), concat_diff_scale (INT8, one more rounding per
branch). Classic: SplitQAcrossPrecedingFanIn needs one scale; NVIDIA/TensorRT issue 2597.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.view import Node
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import LintRule, Violation
from qdqtool.trt.ops import PRODUCTS


def find(flow: Flow, _asked: Target) -> Iterator[Violation]:
    """Concats of INT8 branches with more than one scale."""
    for node in flow.view.nodes:
        if node.op != "Concat":
            continue
        pairs = [flow.origins.get(tensor) for tensor in node.inputs]
        scales = {pair.scale for pair in pairs if pair is not None}
        if len(scales) < 2 or None in pairs:
            continue
        layers = [reader.name for reader in _products(flow, node)]
        yield Violation(
            node=node.name,
            reason=f"its {len(pairs)} branches have {len(scales)} different scales",
            effect=f"{', '.join(layers)} runs in float" if layers else "branches are quantized twice",
            fix="give all branches one scale; `qdqtool repair` takes the largest",
            severity=None if layers else Severity.INFO,
        )


def _products(flow: Flow, concat: Node) -> list[Node]:
    """Products that read the Concat without Q/DQ between."""
    return [reader for reader in flow.readers(concat.outputs[0]) if reader.op in PRODUCTS]


PLUGIN = LintRule(code="QDQ125", severity=Severity.WARNING, find=find)
