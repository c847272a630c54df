"""Operators and attributes that TensorRT for RTX does not build, in any precision.

    x ─ DeformConv ─ ...                       the parser has no importer for it
    scores ─ NonMaxSuppression ─ ...           imported, and no kernel computes it
    x ─ Resize (nearest, half_pixel_symmetric)   the importer refuses the attribute

The build fails, with Q/DQ and without. `lint`, `place` and `run` name these nodes before anything is calibrated; `run` also asks
the parser itself. Classic TensorRT has kernels for NonMaxSuppression and NonZero.

Evidence: RTX 1.7.1: `OnnxParser.supports_operator` for all 201 operators of ONNX and those of com.microsoft that exporters write;
builds of one node of each kind; Resize of 3 modes, 7 coordinate transformations and 4 roundings, up and down.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.matching.refused import match_refused, way_out
from qdqtool.matching.rule import Rule, Violation


def check_refused(flow: Flow, target: Target) -> Iterator[Violation]:
    """Report nodes that the builder does not build in any precision."""
    for node, reason in match_refused(flow.view, target):
        yield Violation(
            node=node.name,
            reason=reason,
            effect="the build fails, with or without Q/DQ",
            fix=way_out(flow.view, node, flow.file),
        )


PLUGIN = Rule(
    code="QDQ160",
    severity=Severity.ERROR,
    targets=frozenset({"rtx"}),
    stops=True,
    check=check_refused,
)
