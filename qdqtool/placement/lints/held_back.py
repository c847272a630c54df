"""A nearest Resize or a Pad between a pair and the layer that should read its INT8 values.

    x ─ Q ─ DQ ─ Resize ─ Conv               the Conv is float
    x ─ Resize ─ Q ─ DQ ─ Conv               INT8; the Resize copies bytes
    x ─ Q ─ DQ ─ Resize ─ Q ─ DQ ─ Conv      INT8 too, where both pairs have one scale

Of the operators that only move values these are the ones through which TensorRT for RTX does not carry a
DequantizeLinear forward; it does carry a QuantizeLinear backward. A Pad of height and width right in front of one Conv
belongs to that Conv and is no obstacle.

Evidence: RTX 1.7.1 dequantizes inside the resizing kernel and multiplies in float (resize_behind_pair,
channel_pad_behind_pair), and runs Resize and Conv on Int8 with the pair behind (resize_before_pair). NVIDIA/TensorRT
issue 2976.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.placement.flow import Flow
from qdqtool.placement.lintrule import LintRule, Violation
from qdqtool.placement.operands import State, both


def find(flow: Flow, asked: Target) -> Iterator[Violation]:
    """Products that read INT8 values through a Resize or a Pad."""
    for node in flow.products():
        for factor in both(flow, node, asked):
            if factor.state is State.HELD_BACK and factor.pair is not None:
                yield Violation(
                    node=node.name,
                    reason=f"a Resize or Pad stands between {factor.pair.dequantize} and its input {factor.index}",
                    effect=f"{node.op} runs in float",
                    fix=f"quantize {node.inputs[factor.index]} with the same scale; `qdqtool repair` does",
                )


PLUGIN = LintRule(code="QDQ139", severity=Severity.WARNING, find=find, targets=frozenset({"rtx"}))
