"""QuantizeLinear and DequantizeLinear of one pair have different scales.

The pair then also multiplies: what comes out is the input times the ratio of the scales. It is legal, and nearly
always a mistake of an edit or an exporter.

Evidence: RTX 1.7.1 builds it as INT8, each half with its own scale (halves_apart).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import Asked, LintRule, Wrong


def find(flow: Flow, _asked: Asked) -> Iterator[Wrong]:
    """Whole pairs whose halves name different constants with different values."""
    view = flow.view
    for pair in flow.pairs:
        if pair.quantize is None or pair.dequantize is None:
            continue
        first, second = view.by_name[pair.quantize].inputs[1], view.by_name[pair.dequantize].inputs[1]
        if first == second:
            continue
        scales = [view.constant(first), view.constant(second)]
        if (
            all(scale is not None for scale in scales)
            and len({scale.tobytes() for scale in scales if scale is not None}) > 1
        ):
            yield Wrong(
                node=pair.dequantize,
                reason=f"its scale differs from that of {pair.quantize}",
                effect="every value is multiplied by the ratio of the two",
                fix="give both halves the same scale",
            )


PLUGIN = LintRule(code="QDQ138", severity=Severity.WARNING, find=find)
