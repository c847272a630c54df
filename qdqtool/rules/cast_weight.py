"""Stored integers that a Cast turns into floats, instead of a DequantizeLinear.

    w (INT8) ─ Cast ─ Mul (scale) ─ MatMul      no build
    w (INT8) ─ DequantizeLinear ─ MatMul        one kernel that reads INT8

Exporters write quantized weights so that know their arithmetic only, such as torchao through torch.onnx: a Sub of zero points, a
Mul behind the Cast or behind the product, blocks by a Reshape on both sides. TensorRT takes a quantized constant for what it is
and allows nothing but DequantizeLinear behind it. The fix writes that, with the same integers and scales; blocks of integers
that four bits hold become INT4, which a kernel reads.

Evidence: RTX 1.7.1: `Quantized constant (w) is only allowed before DQ or PLUGIN_V2`, with a Reshape between too. torchao 0.18 in torch
2.13: INT8 and FP8 per channel, INT4 and INT8 in blocks of 32.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.stored import held_in, stored_casts
from qdqtool.matching.rule import Rule, Violation


def check(flow: Flow, _target: Target) -> Iterator[Violation]:
    """Casts of constants of these types to floats."""
    for node in stored_casts(flow.view):
        yield Violation(
            node=node.name,
            reason=f"it casts the stored {flow.view.info(node.inputs[0]).dtype.value.upper()} values of "
            f"{held_in(flow.view, node.inputs[0])}",
            effect="the builder refuses it: Quantized constant is only allowed before DQ",
            fix="write DequantizeLinear with the scales that follow; `qdqtool repair` does, and takes weights as float whose scales "
            "go neither per channel nor in blocks",
        )


PLUGIN = Rule(code="QDQ191", severity=Severity.ERROR, check=check)
