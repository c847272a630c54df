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
from qdqtool.core.qdq import QdqPair
from qdqtool.core.repair import Change
from qdqtool.core.target import Target
from qdqtool.graph.qdq.flow import Flow
from qdqtool.graph.qdq.repairing import RepairContext
from qdqtool.graph.view import Node
from qdqtool.matching.operands import State, products
from qdqtool.matching.rule import Rule, Violation


def match(flow: Flow, target: Target) -> Iterator[tuple[Node, int, QdqPair]]:
    """Factors of products that INT8 values reach through a Resize or a Pad, and the pairs of these values."""
    for product in products(flow, target):
        for factor in product.factors:
            if factor.state is State.HELD_BACK and factor.pair is not None:
                yield product.node, factor.index, factor.pair


def check(flow: Flow, target: Target) -> Iterator[Violation]:
    """All of them."""
    for node, index, pair in match(flow, target):
        yield Violation(
            node=node.name,
            reason=f"a Resize or Pad stands between {pair.dequantize} and its input {index}",
            effect=f"{node.op} runs in float",
            fix=f"quantize {node.inputs[index]} with the same scale; `qdqtool repair` does",
            products=(node.name,),
        )


def fix(context: RepairContext) -> Iterator[Change]:
    """Put a pair in front of each."""
    for node, index, pair in match(context.flow, context.target or Target()):
        if not context.is_plain(pair) or pair.scale_shape != () or not context.symmetric(pair):
            continue
        yield Change(
            edits=(SlotEdit(slot=Slot(node=node.name, index=index), scales=pair.scale),),
            subject=node.inputs[index],
            what=f"quantized for {node.op} {node.name!r} with the scale of {pair.dequantize!r}",
            reason="a Resize or Pad in front of it keeps INT8 values from the layer",
            error=0.0,
        )


PLUGIN = Rule(code="QDQ139", severity=Severity.WARNING, check=check, fix=fix, targets=frozenset({"rtx"}))
