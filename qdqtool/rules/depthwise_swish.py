"""For TensorRT 8 a depthwise convolution with a Swish behind it stays float.

    x ─ depthwise Conv ─┬─ Sigmoid ─┐
                        └────────── Mul ─ QDQ ─ Conv

TensorRT 8 fuses the convolution, the Swish and the Q behind it into one layer for which no INT8 kernel exists, and the
build ends with "could not find any implementation". The convolution costs little in float; all others stay INT8.

Evidence: NVIDIA/TensorRT issue 3385 (8.5.2); NVIDIA/Model-Optimizer issue 50 (builds with 10). RTX 1.7.1 runs it in
INT8.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.placement import Opinion
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow, is_int8
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.patterns import depthwise_swish
from qdqtool.matching.products import compute_nodes, veto
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import QUANTIZE


def match(view: GraphView) -> Iterator[tuple[Node, str]]:
    """Depthwise convolutions with a Swish behind them, and its result."""
    for node in compute_nodes(view):
        result = depthwise_swish(view, node)
        if result is not None:
            yield node, result


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:
    """Veto such convolutions."""
    if options.builder.family != "8":
        return
    for node, _ in match(view):
        yield from veto(
            node,
            "TensorRT 8 has no INT8 kernel for a depthwise convolution with a Swish behind it",
            "--set place.target=10 places for TensorRT 10 and newer",
        )


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Such convolutions in INT8 whose Swish is quantized."""
    for node, result in match(flow.view):
        whole = all(is_int8(flow.origin(node, index)) for index in (0, 1))
        if whole and any(reader.op == QUANTIZE for reader in flow.readers(result)):
            yield Violation(
                node=node.name,
                reason="it is a depthwise convolution with Q/DQ and a Swish behind it",
                effect="TensorRT 8 has no kernel for the fused layer, and the build may fail",
                fix="take Q/DQ off both inputs of this convolution, or build with TensorRT 10 or newer",
            )


PLUGIN = Rule(
    code="QDQ150",
    formats=frozenset({"int8"}),
    severity=Severity.WARNING,
    targets=frozenset({"8"}),
    place=place,
    check=check,
)
