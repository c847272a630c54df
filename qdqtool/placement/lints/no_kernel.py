"""A depthwise convolution with Q/DQ and a Swish behind it, for TensorRT 8.

    x ─ Q ─ DQ ─ depthwise Conv ─┬─ Sigmoid ─┐
                                 └────────── Mul ─ Q ─ DQ      "could not find any implementation"

TensorRT 8 fuses the four into one layer for which no INT8 kernel exists, and then gives up. Relu behind it is fine, and
so is Swish behind a full convolution.

Evidence: NVIDIA/TensorRT issue 3385 (8.5.2); NVIDIA/Model-Optimizer issue 50 (builds with 10). RTX 1.7.1 runs it in
INT8 (depthwise_swish).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.placement.flow import Flow, is_int8
from qdqtool.placement.lintrule import LintRule, Violation
from qdqtool.placement.patterns import depthwise_swish


def find(flow: Flow, _asked: Target) -> Iterator[Violation]:
    """INT8 depthwise convolutions whose Swish is quantized."""
    for node in flow.products():
        result = depthwise_swish(flow.view, node)
        if result is None or not all(is_int8(flow.origin(node, index)) for index in (0, 1)):
            continue
        if any(reader.op == "QuantizeLinear" for reader in flow.readers(result)):
            yield Violation(
                node=node.name,
                reason="it is a depthwise convolution with Q/DQ and a Swish behind it",
                effect="TensorRT 8 has no kernel for the fused layer, and the build may fail",
                fix="take Q/DQ off both inputs of this convolution, or build with TensorRT 10 or newer",
            )


PLUGIN = LintRule(code="QDQ150", severity=Severity.WARNING, find=find, targets=frozenset({"8"}))
