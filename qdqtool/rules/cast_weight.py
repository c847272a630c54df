"""Stored integers that a Cast turns into floats, instead of a DequantizeLinear.

    w (INT8) ─ Cast ─ Mul (scale) ─ MatMul      no build
    w (INT8) ─ DequantizeLinear ─ MatMul        one kernel that reads INT8

Exporters write quantized weights so that know their arithmetic only, such as torchao through torch.onnx. TensorRT takes a
quantized constant for what it is and allows nothing but DequantizeLinear behind it.

Evidence: RTX 1.7.1: `Quantized constant (w) is only allowed before DQ or PLUGIN_V2`.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.stored import stored_casts
from qdqtool.matching.flow import Flow
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Casts of constants of these types to floats."""
    for node in stored_casts(flow.view):
        yield Violation(
            node=node.name,
            reason=f"it casts the stored {flow.view.info(node.inputs[0]).dtype.value.upper()} values of {node.inputs[0]}",
            effect="the builder refuses it: Quantized constant is only allowed before DQ",
            fix="write DequantizeLinear with the scale that follows; `qdqtool repair` takes the weight as float",
        )


PLUGIN = Rule(code="QDQ191", severity=Severity.ERROR, check=check)
