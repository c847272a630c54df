"""Attention is one fused INT8 kernel when all four inputs of its two matrix products are quantized.

    before                                     after
    q ─ MatMul ─ scale ─ Softmax ─ MatMul      q ─ QDQ ─ MatMul ─ scale ─ Softmax ─ QDQ ─ MatMul
    k ──┘                    v ──────┘         k ─ QDQ ──┘                    v ─ QDQ ──────┘

The requests come from the MatMul rules; this rule only binds them: all four or none, and only where the result is
read as INT8 (the projection behind is quantized too), because the fused kernel hands INT8 on. The softmax result is
part of it although rounding it costs some accuracy: without it the fusion falls apart. Heads of other sizes than 16,
32 and 64, and more than 512 tokens, have no such kernel: there the float attention is fused, so it stays float.

Evidence: RTX 1.7.1 makes `_gemm_mha_v2` with Int8 inputs and output out of the full pattern (sequence 16, 64, 65,
197): 8 kernels for a self-attention block, against 9 for float FP16, 10 where the projection is float, and 11 to 14
when the softmax result is left float. NVIDIA/TensorRT issue 3243 says the same of 8.x, and 3724 that more than 512
tokens are not fused. In FP16 a block with heads of 48 takes 15 kernels with its attention float and 17 with it INT8;
one of 600 tokens 15 and 3.1 MB against 17 and 7.2 MB.
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.findings import Severity
from qdqtool.core.placement import Bond, Opinion, Slot
from qdqtool.core.recipe import PlacementOptions
from qdqtool.core.target import Target
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.flow import Flow, is_int8
from qdqtool.matching.patterns import attentions, int8_obstacle, readers
from qdqtool.matching.products import factors, veto
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import PRODUCTS, QUANTIZE


def place(view: GraphView, options: PlacementOptions) -> Iterator[Opinion | Bond]:
    """Bind the two matrix products of every attention to each other and to the layer behind them."""
    for scores, values in attentions(view):
        behind = _products_behind(view, values)
        objection, fix = int8_obstacle(view, scores, options.builder), "quantize the two products"
        if objection:
            objection += ": the float attention is fused, and moves less"
        elif not behind:
            objection = "the fused INT8 attention hands on INT8 values, and no product reads its result"
            fix += " without fusing them"
        if not objection:
            yield Bond(
                slots=(*factors(scores), *factors(values)),
                reason="a half-quantized attention cannot be fused into one kernel",
                requires=behind,
            )
            continue
        for node in (scores, values):
            yield from veto(node, objection, f"set place.skip_rules=[attention] to {fix}")


def _products_behind(view: GraphView, values: Node) -> tuple[Slot, ...]:
    """The slots that read the attention's result; none where anything but a product reads it."""
    uses = tuple(readers(view, values.outputs[0]))
    if not all(use.node.op in PRODUCTS and use.index < 2 for use in uses):
        return ()
    return tuple(Slot(node=use.node.name, index=use.index) for use in uses)


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Attentions that are neither whole nor float, or INT8 where no kernel is."""
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
        elif not bare and not all(use.node.op == QUANTIZE for use in readers(flow.view, values.outputs[0])):
            yield Violation(
                node=values.name,
                reason="the four inputs of its attention are INT8, its result is read as float",
                effect="the attention is not fused into one kernel",
                fix="quantize the layer behind it, or take Q/DQ off all four",
            )
        elif not bare and (obstacle := int8_obstacle(flow.view, scores, target)):
            yield Violation(
                node=scores.name,
                reason=f"its attention is INT8, but {obstacle}",
                effect="the attention is not fused into one kernel, as a float one is",
                fix="take Q/DQ off all four inputs",
            )


PLUGIN = Rule(code="QDQ132", severity=Severity.WARNING, place=place, check=check)
