"""Average pooling: quantized on classic TensorRT in front of an INT8 layer, float on TensorRT for RTX.

    before                           after, classic TensorRT               after, RTX
    x ─ AveragePool ─ QDQ ─ Conv     x ─ QDQ ─ AveragePool ─ QDQ ─ Conv    unchanged

Averages are not moved values, so the pool needs Q/DQ of its own; classic TensorRT then fuses DQ, pool and Q. RTX
pools in float whatever is quantized, and fuses a global average into the convolution's epilogue: Q/DQ in front only
adds a rounding.

Evidence: RTX 1.7.1: GlobalAveragePool before a Gemm, 5 kernels and 0.115 MB either way, one more quantize-dequantize
inside with Q/DQ; AveragePool stays `avgpool` Float to Float, 7 kernels and 0.225 MB either way. Classic: placement guide of 8.x ("quantizable" layers).
"""

from __future__ import annotations

from collections.abc import Iterator

from qdqtool.core.placement import Opinion, QuantSpec, Slot, Stance
from qdqtool.core.recipe import PlacementOptions
from qdqtool.graph.view import GraphView
from qdqtool.placement.demand import wanted_slots


def PLUGIN(view: GraphView, options: PlacementOptions) -> Iterator[Opinion]:  # noqa: N802 -- the plug
    """The input of average pools that lead to INT8 layers."""
    wanted = wanted_slots(view)
    for node in view.nodes:
        if node.op not in {"AveragePool", "GlobalAveragePool"} or "AveragePool" not in options.ops:
            continue
        slot = Slot(node=node.name, index=0)
        if options.target == "rtx":
            yield Opinion(
                slot=slot,
                rule="pooling",
                stance=Stance.VETO,
                reason="TensorRT for RTX averages in float: Q/DQ in front would only add a rounding",
            )
        elif any(Slot(node=u.node.name, index=u.index) in wanted for u in view.uses(node.outputs[0])):
            yield Opinion(
                slot=slot,
                rule="pooling",
                stance=Stance.REQUEST,
                reason="an average pool between INT8 layers fuses with Q/DQ on both sides",
                spec=QuantSpec(),
            )
