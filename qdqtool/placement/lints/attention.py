"""An attention with Q/DQ on some of the four inputs of its two products.

    q ─ QDQ ─┐
              MatMul ─ scale ─ Softmax ─ QDQ ─┐
    k ─ QDQ ─┘                                 MatMul ─ QDQ ─ projection      one kernel
                                   v ─ QDQ ───┘

The fused kernel exists for all four in INT8, with an INT8 result, and for none; in INT8 for heads of 16, 32 and 64
and up to 512 tokens only. Anything between splits it into two
products with a softmax kernel between them, and pads and slices odd sequence lengths.

Evidence: RTX 1.7.1: 8 kernels with `_gemm_mha_v2` for the whole pattern, 10 when its result is not read as INT8, 11 to
14 for parts of it, 9 for FP16 without any. NVIDIA/TensorRT issue 3243.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.target import Target
from qdqtool.placement.flow import Flow, is_int8
from qdqtool.placement.lintrule import LintRule, Violation
from qdqtool.placement.patterns import attentions, int8_obstacle, readers


def find(flow: Flow, asked: Target) -> Iterator[Violation]:
    """Attentions that are neither whole nor float."""
    for scores, values in attentions(flow.view):
        inputs = [(node, index) for node in (scores, values) for index in (0, 1)]
        bare = [f"{node.name}[{index}]" for node, index in inputs if not is_int8(flow.origin(node, index))]
        if 0 < len(bare) < len(inputs):
            yield Violation(
                node=scores.name,
                reason=f"of the four inputs of its attention {', '.join(bare)} has no Q/DQ",
                effect="the attention is not fused into one kernel",
                fix=f"put Q/DQ on {', '.join(bare)}, or take it off all four",
            )
        elif not bare and not all(
            use.node.op == "QuantizeLinear" for use in readers(flow.view, values.outputs[0])
        ):
            yield Violation(
                node=values.name,
                reason="the four inputs of its attention are INT8, its result is read as float",
                effect="the attention is not fused into one kernel",
                fix="quantize the layer behind it, or take Q/DQ off all four",
            )
        elif not bare and (obstacle := int8_obstacle(flow.view, scores, asked)):
            yield Violation(
                node=scores.name,
                reason=f"its attention is INT8, but {obstacle}",
                effect="the attention is not fused into one kernel, as a float one is",
                fix="take Q/DQ off all four inputs",
            )


PLUGIN = LintRule(code="QDQ132", severity=Severity.WARNING, find=find)
