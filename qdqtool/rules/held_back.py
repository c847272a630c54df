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
from qdqtool.core.fixes import SlotEdit
from qdqtool.core.placement import Slot
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import GraphView, Node
from qdqtool.matching.flow import Flow
from qdqtool.matching.operands import State, products
from qdqtool.matching.rule import Rule, Violation
from qdqtool.trt.ops import PRODUCTS, holds_dequantize_back, quantization_commutes


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """Products that read INT8 values through a Resize or a Pad."""
    for product in products(flow, target):
        node = product.node
        for factor in product.factors:
            if factor.state is State.HELD_BACK and factor.pair is not None:
                yield Violation(
                    node=node.name,
                    reason=f"a Resize or Pad stands between {factor.pair.dequantize} and its input {factor.index}",
                    effect=f"{node.op} runs in float",
                    fix=f"quantize {node.inputs[factor.index]} with the same scale; `qdqtool repair` does",
                    products=(node.name,),
                )


def fix(context: RepairContext) -> Iterator[Change]:
    """Put a pair in front of each factor that INT8 values reach through a Resize or Pad."""
    by_result = {context.result(pair): pair for pair in context.pairs if pair.dequantize is not None}
    for node in context.view.nodes:
        for index in range(min(2, len(node.inputs))) if node.op in PRODUCTS else ():
            source, barrier = _source(context.view, node.inputs[index])
            pair = by_result.get(source)
            if barrier is None or pair is None or pair.scale_shape != () or not context.symmetric(pair):
                continue
            yield Change(
                edits=(SlotEdit(slot=Slot(node=node.name, index=index), scales=pair.scale),),
                subject=node.inputs[index],
                what=f"quantized for {node.op} {node.name!r} with the scale of {pair.dequantize!r}",
                reason=f"{barrier.op} {barrier.name!r} keeps INT8 values from the layer behind it",
                error=0.0,
            )


def _source(view: GraphView, tensor: str) -> tuple[str, Node | None]:
    """The tensor whose values arrive in `tensor` by movement alone, and the first barrier on the way back."""
    barrier = None
    maker = view.producer(tensor)
    while maker is not None and quantization_commutes(view, maker):
        if barrier is None and holds_dequantize_back(view, maker):
            barrier = maker
        tensor = maker.inputs[0]
        maker = view.producer(tensor)
    return tensor, barrier


PLUGIN = Rule(code="QDQ139", severity=Severity.WARNING, check=check, fix=fix, targets=frozenset({"rtx"}))
