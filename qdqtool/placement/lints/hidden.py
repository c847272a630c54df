"""Q/DQ inside the body of an If or a Loop.

TensorRT optimizes the main graph; bodies of conditionals and loops are imported partly, and their Q/DQ fuses with
nothing. Lint does not look inside either.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import Asked, LintRule, Wrong

_PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})


def find(flow: Flow, _asked: Asked) -> Iterator[Wrong]:
    """Control-flow nodes that hold Q/DQ."""
    for node in flow.view.nodes:
        count = sum(op in _PAIR for op in flow.view.body_ops(node))
        if count:
            yield Wrong(
                node=node.name,
                reason=f"{count} Q/DQ nodes are inside its bodies",
                effect="they are not fused, and nobody checks them",
                fix="export without control flow, or leave these layers float",
            )


PLUGIN = LintRule(code="QDQ114", severity=Severity.WARNING, find=find)
